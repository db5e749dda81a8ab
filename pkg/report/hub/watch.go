package hub

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// maxWatchers exceeds the controllers of an installation, including terminating ones.
const maxWatchers = 16

// The kinds of changes, in the order of sending.
const (
	kindCount = iota
	kindEdge
	kindGateway
	kindBoot
	kindProfiles
)

// changeKey identifies one item that a watcher is sent.
type changeKey struct {
	kind    int
	gateway string // of a count or a gateway
	pair    pair   // of a count or an edge; of a boot, with the machine as its node
}

// watcher is one controller. It is sent the state at the time of sending, not each change, so a slow watcher costs at
// most one key per item.
type watcher struct {
	dirty   map[changeKey]bool
	changed chan struct{} // capacity 1: something is dirty
}

// changed notifies all watchers.
func (h *Hub) changed(key changeKey) {
	for w := range h.watchers {
		w.dirty[key] = true
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// Watch implements the service.
func (h *Hub) Watch(_ *reportv1.WatchRequest, stream grpc.ServerStreamingServer[reportv1.Change]) error {
	subject, err := caller(stream.Context(), h.domain, model.RoleController, h.now())
	if err == nil {
		err = h.watch(stream, subject)
	}
	h.refused(subject, err)
	return err
}

func (h *Hub) watch(stream grpc.ServerStreamingServer[reportv1.Change], subject model.Subject) error {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	defer context.AfterFunc(h.open, func() { end(errShutdown) })()
	_, denied := h.admission.Denied()
	if err := h.admission.Admit(subject); err != nil {
		return err
	}
	w, settled, err := h.addWatcher()
	if err != nil {
		return err
	}
	defer h.removeWatcher(w)
	if err := stream.Send(&reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(h.now())}}); err != nil {
		return err
	}
	settle := time.NewTimer(settled.Sub(h.now()))
	defer settle.Stop()
	for synced, all := false, false; ; {
		for _, change := range h.take(w) {
			if err := stream.Send(change); err != nil {
				return err
			}
		}
		if all && !synced {
			synced = true
			if err := stream.Send(&reportv1.Change{What: &reportv1.Change_Synced{Synced: true}}); err != nil {
				return err
			}
		}
		select {
		case <-w.changed:
		case <-settle.C:
			all = true
		case <-denied:
			_, denied = h.admission.Denied()
			if err := h.admission.Admit(subject); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// addWatcher returns a watcher for which everything is new, and when synced may be sent to it.
func (h *Hub) addWatcher() (w *watcher, settled time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= maxWatchers {
		return nil, time.Time{}, status.Error(codes.ResourceExhausted, "too many watchers")
	}
	h.admitted()
	w = &watcher{dirty: map[changeKey]bool{}, changed: make(chan struct{}, 1)}
	for name, g := range h.gateways {
		w.dirty[changeKey{kind: kindGateway, gateway: name}] = true
		for key := range g.counts {
			w.dirty[changeKey{kind: kindCount, gateway: name, pair: key}] = true
		}
	}
	for key := range h.edges {
		w.dirty[changeKey{kind: kindEdge, pair: key}] = true
	}
	h.boots.Each(func(id, host string) { w.dirty[changeKey{kind: kindBoot, pair: pair{host, id}}] = true })
	if h.profiles != nil {
		w.dirty[changeKey{kind: kindProfiles}] = true
	}
	h.watchers[w] = true
	return w, h.ready.Add(h.times.Settle), nil
}

func (h *Hub) removeWatcher(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// take returns the state of everything that a watcher was not sent yet, at one time. It omits what the hub has removed:
// views remove that by themselves.
func (h *Hub) take(w *watcher) []*reportv1.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := make([]changeKey, 0, len(w.dirty))
	for key := range w.dirty {
		keys = append(keys, key)
	}
	clear(w.dirty)
	slices.SortFunc(keys, func(a, b changeKey) int { return cmp.Compare(a.kind, b.kind) })
	changes := make([]*reportv1.Change, 0, len(keys))
	for _, key := range keys {
		if change := h.state(key); change != nil {
			changes = append(changes, change)
		}
	}
	return changes
}

// state returns the state of one item; nil: the hub has removed it.
func (h *Hub) state(key changeKey) *reportv1.Change {
	switch key.kind {
	case kindCount:
		count := &reportv1.TunnelCount{Gateway: key.gateway, Node: key.pair.node, TunnelId: key.pair.id}
		if g := h.gateways[key.gateway]; g != nil {
			c := g.counts[key.pair]
			count.Count, count.WorkersWithout, count.Connections = int32(c.n), int32(c.without), int32(c.connections)
		}
		return &reportv1.Change{What: &reportv1.Change_Tunnels{Tunnels: count}}
	case kindEdge:
		e := h.edges[key.pair]
		if e == nil {
			return nil
		}
		return &reportv1.Change{What: &reportv1.Change_Edge{Edge: &reportv1.EdgeState{
			Node: key.pair.node, TunnelId: key.pair.id, Connected: e.connected, Since: timestamppb.New(e.since),
			Report: e.report,
		}}}
	case kindProfiles:
		if h.profiles == nil {
			return nil
		}
		return &reportv1.Change{What: &reportv1.Change_Profiles{Profiles: h.profiles}}
	case kindBoot:
		b := h.boots.Get(key.pair.id, key.pair.node)
		if b == nil {
			return nil
		}
		return &reportv1.Change{What: &reportv1.Change_Boot{Boot: &reportv1.MachineBoot{
			TunnelId: key.pair.id, Host: key.pair.node, Received: timestamppb.New(b.Received), Report: b.Report,
		}}}
	default:
		g := h.gateways[key.gateway]
		if g == nil {
			return nil
		}
		return &reportv1.Change{What: &reportv1.Change_Gateway{Gateway: &reportv1.GatewayState{
			Name: key.gateway, Connected: g.connected, Since: timestamppb.New(g.since), Incomplete: g.incomplete != "",
			Ready: g.ready, Hang: g.hang,
		}}}
	}
}
