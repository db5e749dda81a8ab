package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxPending is the number of responses of a type that may wait for Envoy. An xds-server sends the next response after
// the answer to the previous one; the stream of one that does not wait is closed.
const maxPending = 64

var (
	errSilent   = errors.New("the xds-server has not answered in time")
	errTooMany  = errors.New("the xds-server does not wait for answers")
	errNotAsked = errors.New("the xds-server sends resources that were not requested")
)

// wildcard subscribes to all resources of a type.
const wildcard = "*"

// stream is an open stream to an xds-server.
type stream struct {
	end      context.CancelCauseFunc
	notified chan struct{}
	out      []*discoveryv3.DeltaDiscoveryRequest // to be sent; guarded by the proxy's lock

	answers *answers // counts the answers sent
}

// open begins a stream: it subscribes to everything and names the versions that Envoy has accepted, so that only
// differences are sent. Resources that Envoy has not accepted are sent again and answered.
func (c *contribution) open(u Upstream, end context.CancelCauseFunc) (*stream, error) {
	var node *corev3.Node
	if u.Node != nil {
		node = u.Node()
	}
	st := &stream{end: end, notified: make(chan struct{}, 1), answers: &c.proxy.answers}
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	if c.removed {
		return nil, errRemoved
	}
	for _, s := range c.shares {
		if s.kind != scopes || c.proxy.scoped && !c.plain {
			st.out = append(st.out, s.subscription(node))
		}
		node = nil // only the first request has it
	}
	notify(st.notified)
	c.stream = st
	return st, nil
}

// subscription begins a type on a new stream.
func (s *share) subscription(node *corev3.Node) *discoveryv3.DeltaDiscoveryRequest {
	s.open, s.base = true, maps.Clone(s.accepted)
	versions := make(map[string]string, len(s.base))
	for name, res := range s.base {
		versions[name] = res.version()
	}
	return &discoveryv3.DeltaDiscoveryRequest{
		Node: node, TypeUrl: s.kind.typeURL(), ResourceNamesSubscribe: []string{wildcard},
		InitialResourceVersions: versions,
	}
}

// scope subscribes to scopes from now on. Before Envoy subscribes to them, the xds-servers are not asked: only gateways
// have scopes, and an xds-server that predates them closes a stream with such a request.
func (r *Proxy) scope() {
	if r.scoped {
		return
	}
	r.scoped = true
	for _, c := range r.contributions {
		if s := c.shares[scopes]; c.stream != nil && !s.open && !c.plain {
			c.stream.out = append(c.stream.out, s.subscription(nil))
			notify(c.stream.notified)
		}
	}
}

// close discards a stream and its pending answers.
func (c *contribution) close(st *stream) {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	if c.stream != st {
		return
	}
	c.stream = nil
	for _, s := range c.shares {
		s.pending = pending{waiting: map[string]string{}}
		s.nonce, s.base, s.open = "", nil, false
	}
	if c.connected {
		c.connected, c.since = false, time.Now()
		c.proxy.restoreYielded(c)
	}
	c.proxy.notifyChanged()
}

// take handles a response.
func (c *contribution) take(
	st *stream, response *discoveryv3.DeltaDiscoveryResponse, check func(string, *anypb.Any) error,
) error {
	k, ok := kindOf(response.GetTypeUrl())
	if !ok {
		return fmt.Errorf("reading response of type %q: %w", response.GetTypeUrl(), errNotAsked)
	}
	got := parse(k, response, check)
	r := c.proxy
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.removed {
		return errRemoved
	}
	s := c.shares[k]
	if !s.open {
		return fmt.Errorf("reading response of type %q: %w", response.GetTypeUrl(), errNotAsked)
	}
	if len(s.pending.nonces) >= maxPending || len(st.out) >= maxPending {
		return errTooMany
	}
	if !c.connected {
		c.connected, c.since = true, time.Now()
		r.log.Info("xds-server answers", "upstream", c.name)
	}
	c.answered = true
	s.receive(got, response.GetNonce())
	r.notifyChanged()
	return nil
}

// answer enqueues an ACK, or a NACK if why is set.
func (st *stream) answer(k kind, nonce string, why *statusv1.Status) {
	st.answers.count(why)
	st.out = append(
		st.out, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: k.typeURL(), ResponseNonce: nonce, ErrorDetail: why},
	)
	notify(st.notified)
}

// send sends the queued requests until the stream ends. The receiver gets the reason of the end.
func (st *stream) send(
	ctx context.Context, conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, mu *sync.Mutex,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-st.notified:
		}
		mu.Lock()
		out := st.out
		st.out = nil
		mu.Unlock()
		for _, request := range out {
			if err := conn.Send(request); err != nil {
				return
			}
		}
	}
}
