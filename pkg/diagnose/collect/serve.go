package collect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/version"
	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// maxRequest has room for the names of some hundred resources.
	maxRequest = 256 << 10
	// maxConnections and maxStreams suffice for some people with their tools, and a status page.
	maxConnections, maxStreams = 32, 16
	// maxBusy bounds the concurrent calls, and maxProbing those that wait for edges to probe their apiservers. Further
	// calls wait.
	maxBusy, maxProbing = 4, 64
	// maxCall bounds a call, and maxWatch one that repeats its query on one stream.
	maxCall, maxWatch = time.Minute, 10 * time.Minute
	// idleTime is when a connection without a call is closed.
	idleTime = 5 * time.Minute
	// tunnelsPart and edgesPart are the entries in one part of an answer, which have about 200 bytes and at most 20 KB.
	tunnelsPart, edgesPart = 10_000, 500
)

// Published provides what is published to gateways and edges. pkg/xds implements it.
type Published interface {
	statusv3.ClientStatusDiscoveryServiceServer
	// Resources passes to take each gateway, and each edge that has any of some resources, with only these resources.
	Resources(names []string, contents bool, take func(*statusv3.ClientConfig) error) error
}

// Config is what the service exposes.
type Config struct {
	Domain    model.TunnelDomain
	Hub       *reporthub.Hub
	Published Published
	Refusals  *Refusals     // nil: none are stored
	Calls     stats.Handler // is notified of each call; nil: disabled
}

// Listen listens on a loopback address, and returns nil for "0". It rejects all other addresses, because there is no
// password.
func Listen(address string) (net.Listener, error) {
	if address == "0" {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	if err := CheckAddress(address); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for inspection: %w", err)
	}
	return listener, nil
}

// CheckAddress returns what is wrong with an address for inspection; "0" disables it.
func CheckAddress(address string) error {
	if address == "0" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listening for inspection at %q: must be host:port: %w", address, err)
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf(
		"listening for inspection at %q: this port has no authentication, so the address must be loopback, such as "+
			"127.0.0.1:%d; users reach it with `kubectl port-forward`",
		address,
		Port,
	)
}

// Serve serves a listener until ctx ends. If the listener is nil, it only waits for ctx.
func Serve(ctx context.Context, listener net.Listener, config Config) error {
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	busy, looking := make(chan struct{}, maxBusy), make(chan struct{}, maxProbing)
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime}),
		grpc.UnaryInterceptor(
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
				slots := busy
				if info.FullMethod == inspectv1.Inspect_Look_FullMethodName ||
					info.FullMethod == inspectv1.Inspect_Prove_FullMethodName {
					slots = looking // it waits for agents, and must not delay other calls
				}
				ctx, done, err := bound(ctx, maxCall, slots)
				if err != nil {
					return nil, err
				}
				defer done()
				return handle(ctx, request)
			},
		),
		grpc.StreamInterceptor(
			func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
				most, slots := maxCall, busy
				if info.IsClientStream {
					most, slots = maxWatch, nil // it waits for its caller most of the time, and takes a slot for each answer
				}
				ctx, done, err := bound(stream.Context(), most, slots)
				if err != nil {
					return err
				}
				defer done()
				return handle(service, &boundStream{stream, ctx})
			},
		),
	}
	if config.Calls != nil {
		options = append(options, grpc.StatsHandler(config.Calls))
	}
	server := grpc.NewServer(options...)
	inspectv1.RegisterInspectServer(server, &service{config: config})
	statusv3.RegisterClientStatusDiscoveryServiceServer(server, config.Published)
	reflection.Register(server)
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(netutil.LimitListener(listener, maxConnections)); err != nil &&
		!errors.Is(err, grpc.ErrServerStopped) &&
		ctx.Err() == nil {
		return fmt.Errorf("serving inspection: %w", err)
	}
	return nil
}

// bound limits the duration of a call and makes it wait for a slot.
func bound(ctx context.Context, most time.Duration, busy chan struct{}) (context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	if busy == nil {
		return ctx, cancel, nil
	}
	select {
	case busy <- struct{}{}:
		return ctx, func() { <-busy; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, ctx.Err()
	}
}

// boundStream is a stream with another context.
type boundStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // gRPC has it so
}

// Context implements grpc.ServerStream.
func (s *boundStream) Context() context.Context { return s.ctx }

// service implements inspectv1.InspectServer.
type service struct {
	inspectv1.UnimplementedInspectServer
	config Config
}

// Fleet implements the service.
func (s *service) Fleet(request *inspectv1.FleetRequest, stream grpc.ServerStreamingServer[inspectv1.FleetPart]) error {
	look := s.config.Hub.Snapshot(stream.Context(), request.GetTunnelIds(), request.GetLive())
	part := &inspectv1.FleetPart{Server: &inspectv1.Server{
		Version: version.Get(), TunnelDomain: string(s.config.Domain), Now: timestamppb.New(look.Now), Settled: look.Settled,
	}}
	for i := range look.Gateways {
		part.Gateways = append(part.Gateways, gatewayMessage(&look.Gateways[i]))
	}
	part.Refusals = s.config.Refusals.messages(look.Now)
	if err := stream.Send(part); err != nil {
		return err
	}
	for i := range look.Gateways {
		if err := sendGateway(&look.Gateways[i], stream.Send); err != nil {
			return err
		}
	}
	return inParts(look.Edges, edgesPart, func(edges []*reportv1.EdgeState) error {
		return stream.Send(&inspectv1.FleetPart{Edges: edges})
	})
}

func gatewayMessage(g *reporthub.GatewaySnapshot) *inspectv1.Gateway {
	message := &inspectv1.Gateway{
		Name: g.Name, Installed: g.Installed, Connected: g.Connected, Ready: g.Ready, Incomplete: g.Incomplete, Hang: g.Hang,
		Zone: g.Zone, Ways: g.Ways,
	}
	if !g.Since.IsZero() {
		message.Since = timestamppb.New(g.Since)
	}
	if g.Problem != nil {
		message.Error = explain(g.Problem).Error()
	}
	return message
}

func sendGateway(g *reporthub.GatewaySnapshot, send func(*inspectv1.FleetPart) error) error {
	part := &inspectv1.FleetPart{}
	for _, h := range g.Holes {
		part.Holes = append(part.Holes, &inspectv1.Hole{Gateway: g.Name, Hole: h})
	}
	if err := send(part); err != nil {
		return err
	}
	return inParts(g.Tunnels, tunnelsPart, func(tunnels []*reportv1.MeasuredTunnel) error {
		part := &inspectv1.FleetPart{}
		for _, t := range tunnels {
			part.Tunnels = append(
				part.Tunnels, &inspectv1.Tunnel{Gateway: g.Name, Tunnel: t.GetTunnel(), RoundTripMicros: t.GetRoundTripMicros()},
			)
		}
		return send(part)
	})
}

// inParts sends a list in parts.
func inParts[E any](list []E, most int, take func([]E) error) error {
	for len(list) > 0 {
		n := min(len(list), most)
		if err := take(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// Resources implements the service.
func (s *service) Resources(
	request *inspectv1.ResourcesRequest, stream grpc.ServerStreamingServer[inspectv1.ResourcesPart],
) error {
	return s.config.Published.Resources(
		request.GetNames(),
		request.GetContents(),
		func(node *statusv3.ClientConfig) error {
			packed, err := anypb.New(node)
			if err != nil {
				return err
			}
			return stream.Send(&inspectv1.ResourcesPart{Node: packed})
		},
	)
}

// Dump implements the service.
func (s *service) Dump(request *inspectv1.DumpRequest, stream grpc.ServerStreamingServer[inspectv1.DumpPart]) error {
	what := &reportv1.DumpQuestion{Names: request.GetNames(), Relay: request.GetRelay()}
	return s.config.Hub.Dump(stream.Context(), request.GetNode(), what, func(data []byte) error {
		return stream.Send(&inspectv1.DumpPart{Data: data})
	})
}

// Look implements the service.
func (s *service) Look(ctx context.Context, request *inspectv1.LookRequest) (*inspectv1.LookAnswer, error) {
	answer := &inspectv1.LookAnswer{}
	for _, look := range s.config.Hub.APIServer(ctx, request.GetTunnelId()) {
		one := &inspectv1.EdgeLook{Node: look.Node, ApiServer: look.APIServer}
		if look.Problem != nil {
			one.Error = explain(look.Problem).Error()
		}
		answer.Edges = append(answer.Edges, one)
	}
	return answer, nil
}
