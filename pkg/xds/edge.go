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

// order is that in which types are sent: listeners refer to Envoy clusters.
var order = [...]string{resourcev3.ClusterType, resourcev3.ListenerType}

// edge is the ADS stream of an edge. There are thousands, on which hardly ever anything happens, so it keeps no resources: it remembers the names and
// versions of those that the edge has, and makes all again when its tunnel or the gateways change. It has one goroutine, which receives, and another
// one only while there is something to send. What that is is computed when it is sent, so there is no queue, and a slow edge delays no other.
//
// What an edge asks for is decoded, built and hashed without any lock: a hostile edge must not delay changes of other tunnels.
type edge struct {
	server  *Server
	subject model.Subject
	conn    discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	hangUp  func(error)
	pace    *rate.Limiter // of requests
	number  uint64        // of streams, in the order in which they came

	// mu guards what follows. It may be locked while the server's lock is held, never the other way round.
	mu      sync.Mutex
	over    bool
	sending bool           // there is a goroutine that sends
	named   bool           // the node id was checked, and dial is known
	dial    envoy.EdgeDial // the addresses that it dials
	made    resources      // while it asks for the first time; nil: made when they are needed
	updates uint64         // how often made became stale
	nonce   uint64
	kinds   [len(order)]kind

	progress [len(order)]progress.Progress
}

// edgeStream serves the stream of an edge to its end.
func (s *Server) edgeStream(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, subject model.Subject) error {
	return ending.Serve(conn.Context(), func(ctx context.Context, end func(error)) error {
		select {
		case <-s.published:
		case <-s.open.Done():
			return errShutdown
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		e := &edge{server: s, subject: subject, conn: conn, hangUp: end, pace: s.limits.newPace()}
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

// enter registers a stream, so that it follows its tunnel. Where its node has too many, the oldest ends.
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
	if err := s.limits.makeRoom(t, e.subject.Node); err != nil {
		return err
	}
	s.streams++
	e.number = s.streams
	s.edges[e] = true
	t.streams[e] = true
	s.logEdge(e.subject, "stream opened", "node", e.subject.Node, "role", e.subject.Role)
	return nil
}

// leave forgets a stream.
func (e *edge) leave() {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	s := e.server
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.edges, e)
	delete(s.telling.waiting, e)
	if t, ok := s.tunnels[e.subject.ID]; ok {
		delete(t.streams, e)
	}
	s.logEdge(e.subject, "stream closed", "node", e.subject.Node)
}

// end ends a stream. It stays in the table of its tunnel until its handler returns.
func (e *edge) end(err error) {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	e.hangUp(err)
}

// receive takes a request, not faster than it may, and notifies the goroutine that sends.
func (e *edge) receive(ctx context.Context, r *discoveryv3.DeltaDiscoveryRequest) error {
	if err := e.server.limits.wait(ctx, e); err != nil {
		return err
	}
	e.server.nack(e.subject, r)
	if err := e.identify(r); err != nil {
		return err
	}
	i := slices.Index(order[:], r.GetTypeUrl())
	if i < 0 {
		return status.Errorf(codes.InvalidArgument, "resources of type %q are not served", csds.Printable(r.GetTypeUrl(), maxQuoted))
	}
	said, err := readRequest(r)
	if err != nil {
		return err
	}
	e.server.figures.Answer(model.RoleEdge, &e.progress[i], r)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kinds[i].apply(said)
	e.wake()
	return nil
}

// identify checks which node a request claims to be from. The first request names the node; later ones may, but must not name another.
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

// update sends what has changed for an edge: at once if it has answered what was sent before, or else when it does. It does not block.
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
	e.wake()
}

// wake starts the goroutine that sends, unless there is one or nothing is to be sent. The caller holds e.mu.
func (e *edge) wake() {
	if e.over || e.sending || !slices.ContainsFunc(e.kinds[:], kind.due) {
		return
	}
	e.sending = true
	go e.send()
}

// send sends until there is no more to send.
func (e *edge) send() {
	for {
		response := e.next()
		if response == nil {
			return
		}
		if err := e.conn.Send(response); err != nil {
			return // and so does Recv
		}
	}
}

// next is what an edge is to be sent now; nil: nothing, and the goroutine that sends must end.
func (e *edge) next() *discoveryv3.DeltaDiscoveryResponse {
	for {
		j, ok := e.pick()
		if !ok {
			return nil
		}
		response, now, err := j.do(e.server, e.subject)
		if err != nil {
			e.server.log.Error("cannot send resources", "node", e.subject.Node, "type_url", order[j.kind], "error", err)
			e.end(status.Error(codes.Internal, "the server could not encode the resources"))
			continue
		}
		if response = e.commit(j, response, now); response != nil {
			p := &e.progress[j.kind]
			e.server.figures.Send(model.RoleEdge, p, response, p.TakeChange())
			return response
		}
	}
}
