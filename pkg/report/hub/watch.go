package hub

import (
	"context"
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
	settled time.Time     // when synced may be sent
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
	w, next, err := h.addWatcher()
	if err != nil {
		return err
	}
	defer h.removeWatcher(w)
	if err := stream.Send(&reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(h.now())}}); err != nil {
		return err
	}
	settle := time.NewTimer(w.settled.Sub(h.now()))
	defer settle.Stop()
	for synced, all := false, false; ; {
		for change := range next.messages() {
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
		next = h.take(w)
	}
}

// addWatcher returns a watcher, and everything that it is sent first. What changes afterwards is dirty.
func (h *Hub) addWatcher() (w *watcher, first states, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= maxWatchers {
		return nil, states{}, status.Error(codes.ResourceExhausted, "too many watchers")
	}
	h.admitted()
	w = &watcher{dirty: map[changeKey]bool{}, changed: make(chan struct{}, 1), settled: h.ready.Add(h.times.Settle)}
	h.watchers[w] = true
	return w, h.everything(), nil
}

func (h *Hub) removeWatcher(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// take returns the states of all items that are dirty, at one time. It omits what the hub has removed, because views
// remove that by themselves.
func (h *Hub) take(w *watcher) (all states) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key := range w.dirty {
		h.add(&all, key)
	}
	w.dirty = map[changeKey]bool{} // not cleared: a large one would stay large, and take as long each time
	return all
}
