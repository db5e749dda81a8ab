package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/ending"
	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/deltaxds"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

const (
	// maxDetail is how many bytes are logged of an Envoy's, or its agent's, reason to reject resources.
	maxDetail = 2 << 10
	// maxResponse bounds the resources in a response: half of what agents accept. The names of removed resources need a
	// part of the other half. One resource may be larger.
	maxResponse = 64 << 20
	// maxLogged is how many nodes and reasons are recorded for the limits of the log.
	maxLogged = 4096
)

var (
	// streamRefusalRate limits the log lines about the same rejected stream. Agents of an unknown tunnel retry every
	// minute.
	streamRefusalRate = limit.Rate{Every: time.Hour, Burst: 1}
	// refusalRate limits the log lines about resources that one node rejects: each may be about others.
	refusalRate = limit.Rate{Every: time.Minute, Burst: 10}
)

// order lists the types of gateways in the order of sending: scopes and listeners refer to Envoy clusters. edgeOrder
// does the same for edges.
var (
	order     = [...]string{resourcev3.ClusterType, resourcev3.ScopedRouteType, resourcev3.ListenerType}
	edgeOrder = [...]string{resourcev3.ClusterType, resourcev3.ListenerType}
)

// typesOf returns the types that nodes of a role receive, in the order of sending.
func typesOf(role model.Role) []string {
	if role == model.RoleGateway {
		return order[:]
	}
	return edgeOrder[:]
}

// resources are the resources of one Envoy, by type URL and name.
type resources map[string]map[string]types.Resource

// adsConn is a stream as gRPC provides it.
type adsConn = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer

// stream is the ADS stream of one node. There are thousands of them, with little traffic, so it keeps no resources. It
// has one goroutine that receives, and another one only while there is something to send. A response is computed when
// it is sent, so there is no queue, and a slow node delays no other. The certificate selects the resources, and no
// request can select others.
//
// Requests are decoded, what they claim is hashed, and resources are built, encoded and hashed, without the locks: a
// hostile node must not delay changes of others. What all gateways share is built when it changes, under the lock
// publishing of the server.
type stream struct {
	server  *Server
	subject model.Subject
	conn    adsConn
	cancel  func(error)
	source  source
	// progress has the types in the order of sending, as state has.
	progress []progress.Progress

	// mu guards the fields below. It may be locked while the server's lock is held, but not the other way round.
	mu      sync.Mutex
	over    bool
	sending bool // the goroutine that sends runs
	named   bool // the node id is checked, and the source knows the node's metadata
	state   deltaxds.Stream
}

// source is what one node is served, by its role. The stream calls offer and sent from the goroutine that sends, one at
// a time, and the others from the one that receives.
type source interface {
	// wait blocks until the rate limits permit a request that was received.
	wait(ctx context.Context) error
	// begin takes the metadata of the node, from its first request.
	begin(node *corev3.Node) error
	// check returns an error for a request that no node of the role sends.
	check(r *discoveryv3.DeltaDiscoveryRequest) error
	// offer returns what the node is to have of a type now, whole or at least what has changed. It returns false if there
	// is nothing to serve any more: then the stream is closed elsewhere.
	offer(kind int, whole bool) (deltaxds.Offer, bool, error)
	// sent completes a response that was computed from the last offer; nil: there is nothing to send. rest is set if the
	// next offer must contain what this one contained. changed is when the oldest change in it was seen; 0: the node gets
	// it first.
	sent(kind int, response *discoveryv3.DeltaDiscoveryResponse, rest bool) (changed int64)
	// idle is called when nothing is left to send, with the stream's lock held.
	idle()
	// exit removes the stream from the tables of the server.
	exit()
}

// DeltaAggregatedResources implements ADS.
func (s *Server) DeltaAggregatedResources(conn adsConn) error {
	subject, err := caller(conn.Context(), s.domain, s.now())
	if err == nil {
		ctx := conn.Context()
		err = ending.Serve(ctx, func(end func(error)) error {
			st, err := s.enter(ctx, subject, conn, end)
			if err != nil {
				return err
			}
			defer st.source.exit()
			for { // here, because each call between this function and Recv costs each stream memory
				r, err := conn.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err == nil {
					err = st.receive(ctx, r)
				}
				if err != nil {
					return err
				}
			}
		})
	}
	s.refused(subject, err)
	return err
}

// refused counts and logs why a stream was rejected or closed: rarely for each node, because a rejected client
// retries.
func (s *Server) refused(subject model.Subject, err error) {
	code := status.Code(err)
	s.figures.noteEnd(code)
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition:
	case codes.Unavailable:
		if s.open.Err() != nil {
			return // the server closes all streams
		}
	default:
		return
	}
	if subject.Role.Enrols() && s.limits.lines.Peek(subject.ID, logRate) > 0 {
		return
	}
	if s.logged.Take(subject.Node+" "+subject.ID+" "+code.String(), streamRefusalRate) == 0 {
		s.log.Warn("stream rejected", "node", subject.Node, "error", err)
	}
}

// enter waits until everything is published, and returns the stream of a subject that is admitted.
func (s *Server) enter(ctx context.Context, subject model.Subject, conn adsConn, end func(error)) (*stream, error) {
	select {
	case <-s.published:
	case <-s.open.Done():
		return nil, errShutdown
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if subject.Role.Enrols() {
		return s.enterEdge(subject, conn, end)
	}
	return s.enterGateway(subject, conn, end)
}

func newStream(s *Server, subject model.Subject, conn adsConn, end func(error)) stream {
	n := len(typesOf(subject.Role))
	return stream{
		server: s, subject: subject, conn: conn, cancel: end,
		progress: make([]progress.Progress, n), state: deltaxds.NewStream(n, s.maxResponse),
	}
}

// receive applies a request, as soon as the rate limits permit, and starts the goroutine that sends.
func (st *stream) receive(ctx context.Context, r *discoveryv3.DeltaDiscoveryRequest) error {
	if err := st.source.wait(ctx); err != nil {
		return err
	}
	st.server.nack(st.subject, r)
	if err := st.identify(r); err != nil {
		return err
	}
	kind := slices.Index(typesOf(st.subject.Role), r.GetTypeUrl())
	if kind < 0 {
		return status.Errorf(
			codes.InvalidArgument, "resources of type %q are not served", printable.Text(r.GetTypeUrl(), maxQuoted),
		)
	}
	if err := st.source.check(r); err != nil {
		return err
	}
	if err := checkNames(r); err != nil {
		return err
	}
	st.server.figures.Answer(st.subject.Role, &st.progress[kind], r)
	have := st.claims(kind, r)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.state.Request(kind, r, have)
	st.startSending()
	return nil
}

// claims returns what the node says it has in its first request for a type. The goroutine that receives calls it, so no
// other request comes in between.
func (st *stream) claims(kind int, r *discoveryv3.DeltaDiscoveryRequest) deltaxds.Claims {
	st.mu.Lock()
	asked := st.state.Asked(kind)
	st.mu.Unlock()
	if asked {
		return nil
	}
	return deltaxds.ClaimsOf(r)
}

// identify checks the node that a request claims to come from. The first request must name it. Later ones may, but
// must not name another.
func (st *stream) identify(r *discoveryv3.DeltaDiscoveryRequest) error {
	if r.GetNode() != nil || !st.named {
		if err := checkNode(r.GetNode(), st.subject); err != nil {
			return err
		}
	}
	if st.named {
		return nil
	}
	if err := st.source.begin(r.GetNode()); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.named = true
	return nil
}

// nack logs that an Envoy rejects resources, within rate limits.
func (s *Server) nack(subject model.Subject, r *discoveryv3.DeltaDiscoveryRequest) {
	detail := r.GetErrorDetail()
	if detail == nil || s.logged.Take(subject.Node+" "+subject.ID+" resources", refusalRate) > 0 {
		return
	}
	if subject.Role.Enrols() && s.limits.refusalText.Take(subject.ID, tunnelRefusalRate) > 0 {
		return
	}
	s.log.Error(
		"resources rejected", "node", subject.Node, "type_url", printable.Text(r.GetTypeUrl(), maxQuoted), "error",
		printable.Text(detail.GetMessage(), maxDetail),
	)
}

func checkNames(r *discoveryv3.DeltaDiscoveryRequest) error {
	for _, name := range r.GetResourceNamesSubscribe() {
		if name != deltaxds.Wildcard { // otherwise one stream could make the server store any number of names
			return status.Error(codes.InvalidArgument, "resources are not served by name, subscribe to all")
		}
	}
	return nil
}

// change has the stream send what has changed of some types: at once if the node has answered the last response, or
// else when it answers. It does not block.
func (st *stream) change(kinds ...int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.over {
		return
	}
	for _, kind := range kinds {
		if st.state.Asked(kind) {
			st.progress[kind].Change()
			st.state.Changed(kind)
		}
	}
	st.startSending()
}

// startSending starts the goroutine that sends, unless it runs or nothing is to be sent. The caller holds st.mu.
func (st *stream) startSending() {
	if st.over || st.sending || !st.state.Due() {
		return
	}
	st.sending = true
	go st.send()
}

// send sends responses until nothing is left to send.
func (st *stream) send() {
	for {
		response := st.next()
		if response == nil {
			return
		}
		if err := st.conn.Send(response); err != nil {
			return // Recv fails too, and ends the stream
		}
	}
}

// next returns the next response. It returns nil if there is none; then the goroutine that sends must end.
func (st *stream) next() *discoveryv3.DeltaDiscoveryResponse {
	for {
		kind, whole, ok := st.pick()
		if !ok {
			return nil
		}
		offer, served, err := st.source.offer(kind, whole)
		if err != nil {
			typeURL := typesOf(st.subject.Role)[kind]
			st.server.log.Error("cannot send resources", "node", st.subject.Node, "type_url", typeURL, "error", err)
			st.close(status.Error(codes.Internal, "the server could not encode the resources"))
			continue
		}
		if !served {
			continue
		}
		if response := st.respond(kind, offer); response != nil {
			return response
		}
	}
}

// pick returns the type to send next. It returns false if there is none.
func (st *stream) pick() (kind int, whole, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.over {
		if kind, whole, ok = st.state.Next(); ok {
			return kind, whole, true
		}
	}
	st.sending = false
	st.source.idle()
	return 0, false, false
}

// respond returns the response by an offer, and records it as sent; nil: there is nothing to send.
func (st *stream) respond(kind int, offer deltaxds.Offer) *discoveryv3.DeltaDiscoveryResponse {
	st.mu.Lock()
	if st.over {
		st.mu.Unlock()
		return nil
	}
	response, rest := st.state.Respond(kind, offer)
	st.mu.Unlock()
	changed := st.source.sent(kind, response, rest)
	if response == nil {
		return nil
	}
	response.TypeUrl = typesOf(st.subject.Role)[kind]
	st.server.figures.Send(st.subject.Role, &st.progress[kind], response, changed)
	return response
}

// close closes a stream with a gRPC status. The stream remains in the tables of the server until its handler returns.
func (st *stream) close(err error) {
	st.leave()
	st.cancel(err)
}

// leave has the stream send nothing more.
func (st *stream) leave() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.over = true
}

// upToDate reports whether a node has answered the newest resources of each type that it has requested. Edges request
// all types.
func (st *stream) upToDate() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for kind := range st.progress {
		if (st.subject.Role.Enrols() || st.state.Asked(kind)) && !st.state.Idle(kind) {
			return false
		}
	}
	return !st.sending
}

// encode returns the resources of one type as they are sent, in any order. It needs no lock.
func encode(typeURL string, all map[string]types.Resource) ([]*deltaxds.Resource, error) {
	encoded := make([]*deltaxds.Resource, 0, len(all))
	for name, r := range all {
		one, err := deltaxds.Encode(typeURL, name, r)
		if err != nil {
			return nil, err
		}
		encoded = append(encoded, one)
	}
	return encoded, nil
}

// logger returns the log of one stream.
func (st *stream) logger() *slog.Logger { return st.server.log.With("node", st.subject.Node) }

// Register adds ADS to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
}
