package xdsproxy

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	errReplaced = status.Error(codes.Aborted, "another Envoy has connected")
	errGone     = errors.New("the stream of Envoy has ended")
)

// session is the stream of the one Envoy. The proxy's lock guards it.
type session struct {
	proxy    *Proxy
	end      context.CancelCauseFunc
	notified chan struct{}
	began    time.Time
	tables   [kinds]*table // nil: not subscribed
	plain    bool          // Envoy has accepted listeners of an xds-server that predates scopes since it was sent scopes
	nonce    uint64
}

// table is the state of one type in Envoy.
type table struct {
	have     map[string]string // versions that Envoy has accepted, by name
	todo     map[string]bool   // names that may differ from what Envoy is offered
	answered bool              // a response was sent, possibly an empty one
	flight   *batch            // not answered by Envoy yet; one at a time
	parts    []*batch          // parts of a batch that Envoy rejected, to find the resources at fault
}

// batch is one response. It has changes of one upstream only, so that Envoy's answer belongs to that upstream.
type batch struct {
	nonce   string
	share   *share // nil: no changes, or only removals of resources without an owner
	changes set
	names   []string          // of changes
	shown   map[string]string // versions that Envoy got
}

// DeltaAggregatedResources implements ADS for Envoy.
func (r *Proxy) DeltaAggregatedResources(
	conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	ctx, end := context.WithCancelCause(conn.Context())
	defer end(nil)
	s := r.attach(end)
	defer r.detach(s)
	go s.read(conn) // until gRPC ends the stream, after this function returns
	for {
		if response := s.next(); response != nil {
			r.record() // before sending, because the response may crash Envoy and this agent with it
			if err := conn.Send(response); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.notified:
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, errGone) {
				return err
			}
			return nil
		}
	}
}

// attach begins a session. There is one Envoy: an existing session belongs to one that has ended, even if gRPC has not
// noticed yet.
func (r *Proxy) attach(end context.CancelCauseFunc) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != nil {
		r.session.end(errReplaced)
	}
	s := &session{proxy: r, end: end, notified: make(chan struct{}, 1), began: time.Now()}
	r.session = s
	r.disprove()
	// Nothing else notifies the session when the wait for upstreams is over.
	time.AfterFunc(r.times.first, func() { notify(s.notified) })
	return s
}

func (r *Proxy) detach(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == s {
		r.session = nil
		r.disprove()
	}
}

// table returns the state of a type in Envoy; nil if no Envoy is connected or it has not subscribed.
func (r *Proxy) table(k kind) *table {
	if r.session == nil {
		return nil
	}
	return r.session.tables[k]
}

// read handles requests until the stream ends.
func (s *session) read(conn discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) {
	for {
		request, err := conn.Recv()
		if err == nil {
			err = s.request(request)
		} else {
			err = errGone
		}
		if err != nil {
			s.end(err)
			return
		}
	}
}

// request handles one request: a subscription, an ACK or a NACK. An error ends the stream.
func (s *session) request(q *discoveryv3.DeltaDiscoveryRequest) error {
	k, ok := kindOf(q.GetTypeUrl())
	if !ok {
		return status.Errorf(codes.InvalidArgument, "resources of type %q are not served", q.GetTypeUrl())
	}
	named := func(name string) bool { return name != wildcard }
	if slices.ContainsFunc(q.GetResourceNamesSubscribe(), named) {
		return status.Error(codes.InvalidArgument, "resources are not served by name, subscribe to all")
	}
	r := s.proxy
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session != s {
		return errReplaced
	}
	t := s.tables[k]
	if t == nil {
		s.subscribe(k, q.GetInitialResourceVersions())
		if k == scopes {
			r.scope()
		}
	} else if f := t.flight; f != nil && f.nonce == q.GetResponseNonce() {
		t.flight = nil
		if detail := q.GetErrorDetail(); detail != nil {
			s.nack(k, f, detail)
		} else {
			s.ack(k, f)
		}
	}
	notify(s.notified)
	return nil
}

// subscribe begins to serve a type to an Envoy that may have some resources already.
func (s *session) subscribe(k kind, have map[string]string) {
	r := s.proxy
	t := &table{have: maps.Clone(have), todo: map[string]bool{}}
	if t.have == nil {
		t.have = map[string]string{}
	}
	s.tables[k] = t
	if len(have) > 0 {
		r.served = true
		if r.trials.count > 0 && !r.trials.open {
			r.trials.open, r.trials.began = true, time.Now() // only the agent had ended
		}
	}
	maps.DeleteFunc(r.dropped[k], func(name string, _ bool) bool { return t.have[name] == "" })
	for name := range have {
		t.todo[name] = true
	}
	for _, c := range r.contributions {
		share := c.shares[k]
		for name := range share.offered {
			t.todo[name] = true
		}
		// Envoy may have accepted it on a stream whose answer was lost, and a new Envoy lacks what was removed.
		for _, names := range [][]string{keys(share.offered), keys(share.accepted), keys(share.pending.waiting)} {
			for _, name := range names {
				share.agree(t, name)
			}
		}
		share.finish()
	}
}

func keys[V any](m map[string]V) []string { return slices.Collect(maps.Keys(m)) }

// ack handles Envoy's acceptance of a batch.
func (s *session) ack(k kind, f *batch) {
	t := s.tables[k]
	for name, res := range f.changes {
		if res == nil {
			delete(t.have, name)
			delete(s.proxy.dropped[k], name)
		} else {
			t.have[name] = f.shown[name]
		}
		if f.share != nil {
			f.share.accept(name, res)
		}
	}
	if f.share != nil {
		f.share.finish()
		if k == listeners {
			s.listened(f.share.of.plain)
		}
	}
}

// listened is called when Envoy has accepted listeners of an xds-server. Envoy ends its subscription of scopes with its
// last listener that uses them, without a request, and sends none when it has such a listener again: for a
// subscription to all resources its set of names has not changed. So it gets all scopes again with the first listeners
// after those of an xds-server that predates scopes. Without them it would drop the requests of all networks.
func (s *session) listened(plain bool) {
	t := s.tables[scopes]
	if t == nil || plain {
		s.plain = s.plain || t != nil
		return
	}
	if !s.plain {
		return
	}
	s.plain = false
	clear(t.have)
	for _, c := range s.proxy.contributions {
		for name := range c.shares[scopes].offered {
			t.todo[name] = true
		}
	}
}

// send puts a batch in flight and returns its response.
func (s *session) send(k kind, b *batch) *discoveryv3.DeltaDiscoveryResponse {
	t := s.tables[k]
	s.nonce++
	b.nonce = strconv.FormatUint(s.nonce, 10)
	t.flight, t.answered, b.shown = b, true, map[string]string{}
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: k.typeURL(), Nonce: b.nonce, SystemVersionInfo: b.nonce}
	for _, name := range b.names {
		delete(t.todo, name)
		if res := b.changes[name]; res != nil {
			message := s.proxy.overridden(k, name, res)
			b.shown[name] = message.GetVersion()
			response.Resources = append(response.Resources, message)
			s.proxy.served = true
		} else {
			response.RemovedResources = append(response.RemovedResources, name)
		}
	}
	s.proxy.log.Debug("resources sent to Envoy", "type_url", k.typeURL(), "nonce", b.nonce, "upstream", b.share.upstream(),
		"resources", len(response.Resources), "removed", len(response.RemovedResources))
	return response
}
