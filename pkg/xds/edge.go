package xds

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/ending"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// order is that in which types are sent: listeners refer to Envoy clusters.
var order = [...]string{resourcev3.ClusterType, resourcev3.ListenerType}

// edge is the ADS stream of an edge. There are thousands, on which hardly ever anything happens, so it keeps no resources: of those that the edge
// has it remembers names and versions, and makes all again when its tunnel or the gateways change. It has one goroutine, which receives, and another
// one only while there is something to send: what that is is computed when it is sent, so there is no queue and a slow edge holds nobody. The
// server's lock guards it.
type edge struct {
	server  *Server
	subject model.Subject
	conn    discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	hangUp  func(error)
	over    bool
	sending bool           // there is a goroutine that sends
	named   bool           // the node id was checked, and dial is known
	dial    envoy.EdgeDial // whom it dials
	made    resources      // while it asks for the first time; nil: made when they are needed
	nonce   uint64
	kinds   [len(order)]kind

	progress [len(order)]progress // for the figures
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
		e := &edge{server: s, subject: subject, conn: conn, hangUp: end}
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
				err = e.receive(r)
			}
			if err != nil {
				return err
			}
		}
	})
}

// enter registers a stream, so that it follows its tunnel.
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
	s.edges[e] = true
	s.tunnels[e.subject.ID].streams[e] = true
	s.log.Info("stream opened", "node", e.subject.Node, "role", e.subject.Role)
	return nil
}

// leave forgets a stream.
func (e *edge) leave() {
	s := e.server
	s.mu.Lock()
	defer s.mu.Unlock()
	e.over = true
	delete(s.edges, e)
	delete(s.telling.waiting, e)
	if t, ok := s.tunnels[e.subject.ID]; ok {
		delete(t.streams, e)
	}
	s.log.Info("stream closed", "node", e.subject.Node)
}

// end ends a stream. It is still in the table of its tunnel, for whoever walks that.
func (e *edge) end(err error) {
	e.over = true
	e.hangUp(err)
}

// receive looks at a request and has sent what it asks for.
func (e *edge) receive(r *discoveryv3.DeltaDiscoveryRequest) error {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	e.server.nack(e.subject, r)
	// The node is named in the first request only; more often is allowed, but not another.
	if r.GetNode() != nil || !e.named {
		if err := checkNode(r.GetNode(), e.subject); err != nil {
			return err
		}
	}
	if !e.named {
		dial, err := envoy.ParseEdgeDial(r.GetNode())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		e.named, e.dial = true, dial
	}
	if err := checkNames(r); err != nil {
		return err
	}
	i := slices.Index(order[:], r.GetTypeUrl())
	if i < 0 {
		return status.Errorf(codes.InvalidArgument, "resources of type %q are not served", r.GetTypeUrl())
	}
	e.server.figures.answer(model.RoleEdge, &e.progress[i], r)
	e.kinds[i].apply(r)
	e.wake()
	return nil
}

// update has sent what has changed for an edge: at once if it has answered what was sent before, or else when it does.
func (e *edge) update() {
	e.made = nil
	for i := range e.kinds {
		if k := &e.kinds[i]; k.asked && !e.over {
			e.progress[i].change()
			k.stale = true
		}
	}
	e.wake()
}

// wake has what there may be to send sent by another goroutine, unless there is one.
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

// next is what an edge is to be sent now; nil: nothing, and whoever sends must end.
func (e *edge) next() *discoveryv3.DeltaDiscoveryResponse {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	for i := range e.kinds {
		if e.over {
			break
		}
		if !e.kinds[i].due() {
			continue
		}
		response, err := e.answer(i)
		if err != nil {
			e.server.log.Error("resources not sent", "node", e.subject.Node, "type_url", order[i], "error", err)
			e.end(status.Error(codes.Internal, "the server could not encode the resources"))
		} else if response != nil {
			return response
		}
	}
	e.sending = false
	if !slices.ContainsFunc(e.kinds[:], func(k kind) bool { return !k.asked }) {
		e.made = nil // it has asked for all that there is
	}
	return nil
}

// answer is what an edge does not know of a type; nil: there is nothing, and it need not be told so.
func (e *edge) answer(i int) (*discoveryv3.DeltaDiscoveryResponse, error) {
	k, p := &e.kinds[i], &e.progress[i]
	must := k.first
	k.stale, k.first = false, false
	t := e.server.tunnels[e.subject.ID]
	if !k.all || t == nil { // its end is told otherwise
		return nil, nil //nolint:nilnil // as documented
	}
	if e.made == nil {
		e.made = e.server.edgeResources(t.cluster, e.subject.Node, e.dial)
	}
	response, now, err := k.difference(order[i], e.made[order[i]])
	if err != nil {
		return nil, err
	}
	k.known = now
	if len(response.GetResources())+len(response.GetRemovedResources()) == 0 && !must {
		return nil, nil //nolint:nilnil // as documented
	}
	e.nonce++
	response.Nonce = strconv.FormatUint(e.nonce, 10)
	response.SystemVersionInfo = response.GetNonce()
	k.waiting = false
	e.server.figures.send(model.RoleEdge, p, response, p.next.Swap(0))
	return response, nil
}
