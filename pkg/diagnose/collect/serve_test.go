package collect

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/freeport"
	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
)

const domain model.TunnelDomain = "tunnels.example.com"

// empty is an xds-server without connected agents.
type empty struct {
	statusv3.UnimplementedClientStatusDiscoveryServiceServer
}

// Resources implements Published.
func (empty) Resources([]string, bool, func(*statusv3.ClientConfig) error) error { return nil }

// Admit implements reporthub.Admission.
func (empty) Admit(model.Subject) error { return nil }

// Denied implements reporthub.Admission.
func (empty) Denied() (model.Denied, <-chan struct{}) { return model.Denied{}, nil }

// Gateways implements reporthub.Admission.
func (empty) Gateways() []string { return []string{"gateway-0"} }

func serveEmpty(t *testing.T) (address string) {
	t.Helper()
	return serve(t, empty{})
}

// serve serves an xds-server without connected agents that has published something.
func serve(t *testing.T, published Published) (address string) {
	t.Helper()
	listener, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hub := reporthub.New(domain, empty{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, Config{Domain: domain, Hub: hub, Published: published}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func TestOnlyLoopbackIsServed(t *testing.T) {
	t.Parallel()
	for address, good := range map[string]bool{
		"127.0.0.1:9447": true, "127.9.9.9:1": true, "[::1]:9447": true, "localhost:9447": true, "0": true,
		"[::ffff:127.0.0.1]:1": true,
		"0.0.0.0:9447":         false, ":9447": false, "10.0.0.1:9447": false, "[::]:9447": false, "9447": false,
		"example.com:9447": false, "": false,
	} {
		if err := CheckAddress(address); (err == nil) != good {
			t.Errorf("%q: got %v", address, err)
		}
	}
	if listener, err := Listen("0"); listener != nil || err != nil {
		t.Errorf("got %v, %v", listener, err)
	}
}

// Clients such as grpcurl and grpcdebug discover the methods by reflection.
func TestServicesAreFoundByReflection(t *testing.T) {
	t.Parallel()
	conn, err := grpc.NewClient(serveEmpty(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(r *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	var services []string
	listed := ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	})
	for _, s := range listed.GetListServicesResponse().GetService() {
		services = append(services, s.GetName())
	}
	for _, want := range []string{"envoy.service.status.v3.ClientStatusDiscoveryService", "fairlead.inspect.v1.Inspect"} {
		if !slices.Contains(services, want) {
			t.Errorf("%s is not in %v", want, services)
		}
		r := ask(
			&reflectionv1.ServerReflectionRequest{
				MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: want},
			},
		)
		if len(r.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s is not described: %v", want, r.GetErrorResponse())
		}
	}
}

func TestServersWithoutAnAnswerAreNamed(t *testing.T) {
	t.Parallel()
	there, away := serveEmpty(t), freeport.Address(t)
	servers, err := Connect(t.Context(), Options{Addresses: []string{there, away}})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	fleet, err := servers.Fleet(t.Context())
	if err != nil || len(fleet.Servers) != 2 || fleet.Servers[0].Err != nil || fleet.Servers[1].Err == nil ||
		!strings.Contains(fleet.Servers[1].Err.Error(), away) {
		t.Errorf("%v: %+v", err, fleet.Servers)
	}
	if fleet.Domain != domain || len(fleet.Gateways) != 1 || fleet.Gateways[0].Connected ||
		fleet.Gateways[0].Server != "" {
		t.Errorf("got %+v", fleet)
	}
	if _, err := servers.Dump(t.Context(), "gateway-0"); err == nil || errors.Is(err, ErrNotConnected) {
		t.Errorf("it may be with the one that is away: %v", err)
	}
	alone, err := Connect(t.Context(), Options{Addresses: []string{away}})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	if _, err := alone.Fleet(t.Context()); err == nil || !strings.Contains(err.Error(), away) {
		t.Errorf("got %v", err)
	}
}

// unreadable is an xds-server that does not answer with resources.
type unreadable struct{ empty }

// Resources implements Published.
func (unreadable) Resources([]string, bool, func(*statusv3.ClientConfig) error) error {
	return errors.New("odd")
}

func TestAServerThatDoesNotAnswerWithResourcesIsNamed(t *testing.T) {
	t.Parallel()
	there, odd, away := serveEmpty(t), serve(t, unreadable{}), freeport.Address(t)
	servers, err := Connect(t.Context(), Options{Addresses: []string{there, odd, away}})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	fleet, err := servers.Observe(t.Context(), "id", []string{"c1.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ unread, silent bool }{{}, {unread: true}, {silent: true}} {
		if s := fleet.Servers[i]; (s.Unread != nil) != want.unread || (s.Err != nil) != want.silent {
			t.Errorf("got %+v, want %+v", s, want)
		}
	}
}

func TestAnswersOfServersAreMerged(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	gateway := func(name string, connected bool, ago time.Duration) *inspectv1.Gateway {
		return &inspectv1.Gateway{
			Name:      name,
			Connected: connected,
			Ready:     true,
			Installed: true,
			Since:     timestamppb.New(now.Add(-ago)),
		}
	}
	answer := func(gateways ...*inspectv1.Gateway) *fleetAnswer {
		a := &fleetAnswer{}
		for _, g := range gateways {
			a.Gateways = append(a.Gateways, g)
			a.Tunnels = append(a.Tunnels, &inspectv1.Tunnel{Gateway: g.GetName()})
		}
		return a
	}
	s := &Servers{all: []*connection{{name: "a"}, {name: "b"}, {name: "c"}}}
	f := s.merge([]*fleetAnswer{
		answer(gateway("gateway-0", true, time.Hour), gateway("gateway-1", false, time.Minute)),
		answer(gateway("gateway-0", false, time.Second), gateway("gateway-1", false, time.Hour)),
		nil,
	}, []error{nil, nil, status.Error(codes.Unavailable, "away")})
	if len(f.Gateways) != 2 || f.Gateways[0].Server != "a" || !f.Gateways[0].Ready || f.Gateways[1].Server != "a" ||
		f.Gateways[1].Ready ||
		!f.Gateways[1].Since.Equal(now.Add(-time.Minute)) {
		t.Errorf("got %+v", f.Gateways)
	}
	if len(f.Tunnels) != 2 || f.Servers[2].Err == nil {
		t.Errorf("got %+v, %+v", f.Tunnels, f.Servers)
	}
}

// TestAServerThatHangsTakesTheTimeOfOneCall: later calls need not wait for it as long as the first one.
func TestAServerThatHangsTakesTheTimeOfOneCall(t *testing.T) {
	t.Parallel()
	hanging, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close() // it accepts connections in its backlog, and never reads
	servers, err := Connect(t.Context(), Options{Addresses: []string{serveEmpty(t), hanging.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	first, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := servers.Fleet(first); err != nil || first.Err() == nil {
		t.Fatalf("got %v; it has waited until the end: %v", err, first.Err())
	}
	second, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	fleet, err := servers.Fleet(second)
	if err != nil || second.Err() != nil || len(fleet.Silent()) != 1 {
		t.Errorf("got %v and %v, %v", err, fleet.Silent(), second.Err())
	}
}
