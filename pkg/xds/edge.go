package xds

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/ending"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
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

// edge is the ADS stream of an edge, or of the Envoy beside an apiserver. There are thousands of them, with little
// traffic, so it does not keep resources. It records the names and versions of the resources that the edge has, and
// builds all resources again when the tunnel or the gateways change. It has one goroutine that receives, and another
// one only while there is something to send. A response is computed when it is sent, so there is no queue, and a slow
// edge delays no other.
//
// Requests are decoded, and resources are built and hashed, without any lock: a hostile edge must not delay changes
// of other tunnels.
type edge struct {
	server  *Server
	subject model.Subject
	conn    discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	cancel  func(error)
	pace    *rate.Limiter // of requests
	number  uint64        // of the stream: a newer one has a higher number

	// mu guards the fields below. It may be locked while the server's lock is held, but not the other way round.
	mu      sync.Mutex
	over    bool
	sending bool           // the goroutine that sends runs
	named   bool           // the node id is checked, and dial is set
	dial    envoy.EdgeDial // where the edge dials gateways
	made    resources      // until the edge has requested all types; nil: built when they are needed
	updates uint64         // how often made became stale
	nonce   uint64
	kinds   [len(edgeOrder)]kind

	progress [len(edgeOrder)]progress.Progress
}

// edgeStream serves the stream of an edge until it ends.
func (s *Server) edgeStream(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, subject model.Subject,
) error {
	return ending.Serve(conn.Context(), func(ctx context.Context, end func(error)) error {
		select {
		case <-s.published:
		case <-s.open.Done():
			return errShutdown
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		e := &edge{server: s, subject: subject, conn: conn, cancel: end, pace: s.limits.newPace()}
		if err := e.enter(); err != nil {
			return err
		}
		defer e.leave()
		for {
			r, err := conn.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = e.receive(ctx, r)
			}
			if err != nil {
				return err
			}
		}
	})
}

// enter registers a stream, so that it follows its tunnel. If its node has too many streams, the oldest is closed.
func (e *edge) enter() error {
	s := e.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open.Err() != nil {
		return errShutdown
	}
	if err := s.admit(e.subject); err != nil {
		return err
	}
	t := s.tunnels[e.subject.ID]
	if err := s.limits.evictFor(t, e.subject.Node); err != nil {
		return err
	}
	s.streams++
	e.number = s.streams
	s.edges[e] = true
	t.streams[e] = true
	s.logEdge(e.subject, "stream opened", "node", e.subject.Node, "role", e.subject.Role)
	return nil
}

// leave removes a stream from the tables of the server.
func (e *edge) leave() {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	s := e.server
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.edges, e)
	delete(s.outdated.waiting, e)
	if t, ok := s.tunnels[e.subject.ID]; ok {
		delete(t.streams, e)
	}
	s.logEdge(e.subject, "stream closed", "node", e.subject.Node)
}

// end closes a stream with a gRPC status. The stream remains in the table of its tunnel until its handler returns.
func (e *edge) end(err error) {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.cancel(err)
}

// receive applies a request, as soon as the rate limits permit, and starts the goroutine that sends.
func (e *edge) receive(ctx context.Context, r *discoveryv3.DeltaDiscoveryRequest) error {
	if err := e.server.limits.wait(ctx, e); err != nil {
		return err
	}
	e.server.nack(e.subject, r)
	if err := e.identify(r); err != nil {
		return err
	}
	i := slices.Index(edgeOrder[:], r.GetTypeUrl())
	if i < 0 {
		return status.Errorf(
			codes.InvalidArgument, "resources of type %q are not served", csds.Printable(r.GetTypeUrl(), maxQuoted),
		)
	}
	req, err := readRequest(r)
	if err != nil {
		return err
	}
	e.server.figures.Answer(e.subject.Role, &e.progress[i], r)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kinds[i].apply(req)
	e.startSending()
	return nil
}

// identify checks the node that a request claims to come from. The first request must name it. Later ones may, but
// must not name another.
func (e *edge) identify(r *discoveryv3.DeltaDiscoveryRequest) error {
	e.mu.Lock()
	named := e.named
	e.mu.Unlock()
	if r.GetNode() != nil || !named {
		if err := checkNode(r.GetNode(), e.subject); err != nil {
			return err
		}
	}
	if named {
		return nil
	}
	dial, err := envoy.ParseEdgeDial(r.GetNode())
	if err != nil {
		return status.Error(codes.InvalidArgument, csds.Printable(err.Error(), maxQuoted))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.named, e.dial = true, dial
	return nil
}

// update has the stream send what has changed: at once if the edge has answered the last response, or else when it
// answers. It does not block.
func (e *edge) update() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made = nil
	e.updates++
	for i := range e.kinds {
		if k := &e.kinds[i]; k.asked && !e.over {
			e.progress[i].Change()
			k.stale = true
		}
	}
	e.startSending()
}

// startSending starts the goroutine that sends, unless it runs or nothing is to be sent. The caller holds e.mu.
func (e *edge) startSending() {
	if e.over || e.sending || !slices.ContainsFunc(e.kinds[:], kind.due) {
		return
	}
	e.sending = true
	go e.send()
}

// send sends responses until nothing is left to send.
func (e *edge) send() {
	for {
		response := e.next()
		if response == nil {
			return
		}
		if err := e.conn.Send(response); err != nil {
			return // Recv fails too, and ends the stream
		}
	}
}

// next returns the next response for an edge. It returns nil if there is none; then the goroutine that sends must
// end.
func (e *edge) next() *discoveryv3.DeltaDiscoveryResponse {
	for {
		j, ok := e.pick()
		if !ok {
			return nil
		}
		response, now, err := j.do(e.server, e.subject)
		if err != nil {
			e.server.log.Error("cannot send resources", "node", e.subject.Node, "type_url", edgeOrder[j.kind], "error", err)
			e.end(status.Error(codes.Internal, "the server could not encode the resources"))
			continue
		}
		if response = e.commit(j, response, now); response != nil {
			p := &e.progress[j.kind]
			e.server.figures.Send(e.subject.Role, p, response, p.TakeChange())
			return response
		}
	}
}
