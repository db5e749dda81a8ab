package xdsproxy

import (
	"context"
	"errors"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/xdsproxy/relay"
)

// session is a stream of Envoy.
type session struct {
	id       uint64
	end      context.CancelCauseFunc
	notified chan struct{}
	out      []relay.Respond // to be sent; guarded by the proxy's lock
}

// DeltaAggregatedResources implements ADS for Envoy.
func (p *Proxy) DeltaAggregatedResources(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	ctx, end := context.WithCancelCause(conn.Context())
	defer end(nil)
	s := p.attach(end)
	defer p.detach(s)
	go p.read(s, conn) // until gRPC ends the stream, after this function returns
	for {
		p.mu.Lock()
		out := s.out
		s.out = nil
		p.mu.Unlock()
		for _, e := range out {
			if err := conn.Send(p.response(e)); err != nil {
				return err
			}
		}
		select {
		case <-s.notified:
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// ended returns how the stream of Envoy ends.
func ended(ctx context.Context) error {
	switch err := context.Cause(ctx); {
	case errors.Is(err, relay.ErrGone):
		return nil
	case errors.Is(err, relay.ErrReplaced):
		return status.Error(codes.Aborted, err.Error())
	default:
		return err
	}
}

func (p *Proxy) attach(end context.CancelCauseFunc) *session {
	p.mu.Lock()
	p.number++
	s := &session{id: p.number, end: end, notified: make(chan struct{}, 1)}
	p.sessions[s.id] = s
	p.mu.Unlock()
	p.apply(relay.Attached{Session: s.id})
	return s
}

func (p *Proxy) detach(s *session) {
	p.apply(relay.Detached{Session: s.id})
	p.mu.Lock()
	delete(p.sessions, s.id)
	p.mu.Unlock()
}

// read handles requests until the stream ends.
func (p *Proxy) read(s *session, conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) {
	for {
		request, err := conn.Recv()
		if err != nil {
			s.end(relay.ErrGone)
			return
		}
		event, err := requested(s.id, request)
		if err != nil {
			s.end(err)
			return
		}
		p.apply(event)
	}
}

// requested returns the event of a request. An error ends the stream. What Envoy unsubscribes from is ignored: it
// subscribes to nothing by name, and the subscription to all resources of a type lasts as long as the stream.
func requested(id uint64, q *discoveryv3.DeltaDiscoveryRequest) (relay.Requested, error) {
	k, ok := relay.KindOf(q.GetTypeUrl())
	if !ok {
		return relay.Requested{}, status.Errorf(
			codes.InvalidArgument, "resources of type %q are not served", q.GetTypeUrl(),
		)
	}
	named := func(name string) bool { return name != wildcard }
	if slices.ContainsFunc(q.GetResourceNamesSubscribe(), named) {
		return relay.Requested{}, status.Error(
			codes.InvalidArgument, "resources are not served by name, subscribe to all",
		)
	}
	e := relay.Requested{Session: id, Kind: k, Have: q.GetInitialResourceVersions(), Nonce: q.GetResponseNonce()}
	if detail := q.GetErrorDetail(); detail != nil {
		e.Nack = &relay.Rejection{Code: codes.Code(detail.GetCode()), Message: detail.GetMessage()}
	}
	return e, nil
}

// response returns the message of an effect.
func (p *Proxy) response(e relay.Respond) *discoveryv3.DeltaDiscoveryResponse {
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: e.Kind.TypeURL(), Nonce: e.Nonce, SystemVersionInfo: e.Nonce, RemovedResources: e.Removed,
	}
	for _, res := range e.Resources {
		response.Resources = append(response.Resources, p.overridden(e.Kind, res))
	}
	return response
}
