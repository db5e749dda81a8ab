package xds

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/deltaxds"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/feed"
)

// listenersKind is the type of gateways that they do not share.
const listenersKind = len(order) - 1

// gateway is the stream of a gateway. It shares its Envoy clusters and scopes with all other gateways. Its listeners
// are built when they are sent.
type gateway struct {
	stream
	shutdown  func() bool             // ends the wait for the end of the server
	bind      envoy.GatewayBind       // where it listens
	positions [listenersKind]position // in what all gateways share
}

// position is how far the stream of a gateway is with one shared type.
type position struct {
	reader *feed.Reader
	read   feed.Reading // the last offer
	told   bool         // a response was sent
	last   uint64       // number of the last change in it
}

// enterGateway returns the stream of a gateway, which begin then registers.
func (s *Server) enterGateway(subject model.Subject, conn adsConn, end func(error)) (*stream, error) {
	if err := s.Admit(subject); err != nil {
		return nil, err
	}
	g := &gateway{stream: newStream(s, subject, conn, end)}
	g.source = g
	g.shutdown = context.AfterFunc(s.open, func() { g.close(errShutdown) })
	g.logger().Info("stream opened", "role", g.subject.Role)
	return &g.stream, nil
}

func (st *gateway) exit() {
	st.shutdown()
	st.leave()
	st.server.mu.Lock()
	delete(st.server.gatewayStreams, st)
	st.server.mu.Unlock()
	st.logger().Info("stream closed")
}

// wait returns nil: gateways are a part of the installation, and have no limits.
func (st *gateway) wait(context.Context) error { return nil }

func (st *gateway) check(*discoveryv3.DeltaDiscoveryRequest) error { return nil }

// begin enters the stream in the table of the server. Gateways of versions without networks get neither scopes nor the
// Envoy clusters of networks.
func (st *gateway) begin(node *corev3.Node) (err error) {
	if st.bind, err = envoy.ParseGatewayBind(node); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	var clusters, scopes func(string) bool
	if !st.bind.Version.Networks() {
		clusters, scopes = envoy.OfNetwork, func(string) bool { return true }
	}
	s := st.server
	s.publishing.Lock() // no change of the variants may come between the reader and its entry in s.gatewayStreams
	defer s.publishing.Unlock()
	st.positions[0].reader = feed.NewReader(s.profiles.differs(st.subject), clusters)
	st.positions[1].reader = feed.NewReader(false, scopes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gatewayStreams[st] = true
	return nil
}

func (st *gateway) offer(kind int, whole bool) (deltaxds.Offer, bool, error) {
	if kind == listenersKind {
		all, errs := st.server.gatewayListeners(st)
		st.server.leftOut(resourcev3.ListenerType, errs, "node", st.subject.Node)
		encoded, err := encode(order[kind], all)
		return deltaxds.Whole(encoded), true, err
	}
	at := &st.positions[kind]
	at.read = st.server.sharedOf(kind).Read(at.reader, whole)
	return at.read.Offer(), true, nil
}

func (st *gateway) sent(kind int, response *discoveryv3.DeltaDiscoveryResponse, rest bool) (changed int64) {
	if kind == listenersKind {
		if response != nil {
			changed = st.progress[kind].TakeChange()
		}
	} else {
		changed = st.sentShared(kind, response, rest)
	}
	if response != nil {
		st.logger().Debug("resources sent", "type_url", order[kind], "version", response.GetSystemVersionInfo(),
			"resources", len(response.GetResources()), "removed", len(response.GetRemovedResources()))
	}
	return changed
}

// sentShared records how far the stream is with a shared type, unless there is a rest to read again. It returns the
// time of the first change in the response.
func (st *gateway) sentShared(kind int, response *discoveryv3.DeltaDiscoveryResponse, rest bool) (changed int64) {
	of, at := st.server.sharedOf(kind), &st.positions[kind]
	if !rest {
		of.Keep(at.reader, at.read)
	}
	if response == nil {
		return 0
	}
	if at.told {
		changed = of.marks.Since(at.last)
	}
	at.told, at.last = true, at.read.Last()
	return changed
}

func (st *gateway) idle() {}

// gatewayListeners builds all listeners of one gateway, and returns the errors of those that are left out. It needs no
// lock.
func (s *Server) gatewayListeners(st *gateway) (map[string]types.Resource, []error) {
	s.mu.RLock()
	from := s.listening
	s.mu.RUnlock()
	r, bind := from.profiles.of(st.subject), st.bind
	bind.Version = bind.Version.AtMost(r.version)
	return check(envoy.GatewayListeners(r.inst, st.subject.Node, bind, from.denied), nil, from.taken)
}
