package status

import (
	"container/list"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// urgency is the priority of a write of status.
type urgency int

const (
	worse   urgency = iota // a condition is no longer True, or an edge was revoked
	flipped                // another condition has changed
	minor                  // anything else
	seen                   // only when an edge was seen last
	urgencies
)

const (
	// defaultStatusWrites lets 10,000 Tunnels be written in little more than a minute, or in two with the conditions of
	// their Clusters.
	defaultStatusWrites = 150
	// seenShare reserves one of so many writes for lastSeen, which is never urgent and always pending.
	seenShare = 20
	// longestWaitShare gives one of so many turns to the Tunnel that waits longest, so that none waits for ever.
	longestWaitShare = 4
	// unusedTurns bounds the granted turns that are not used yet. It exceeds the number of workers, so that none is idle.
	unusedTurns = 2 * liveWorkers
)

// writeQueue limits the rate of writes of live state over all Tunnels. A Tunnel that may not write now waits for a
// turn, and then writes its current state. It is safe for concurrent use; nil does not limit.
type writeQueue struct {
	rate    float64 // per second, which is also the burst
	changed chan struct{}

	mu      sync.Mutex
	at      time.Time // of the next two
	tokens  float64   // negative after several writes were spent at once
	spare   float64   // for lastSeen
	turns   int       // granted so far
	queues  [urgencies]*list.List
	places  map[client.ObjectKey]*list.Element
	granted map[client.ObjectKey]bool
}

// place is a Tunnel in the queue.
type place struct {
	key     client.ObjectKey
	urgency urgency
	since   time.Time
}

func newWriteQueue(perSecond int) *writeQueue {
	if perSecond == 0 {
		perSecond = defaultStatusWrites
	}
	w := &writeQueue{
		rate: float64(perSecond), tokens: float64(perSecond), spare: 1, at: time.Now(), changed: make(chan struct{}, 1),
		places: map[client.ObjectKey]*list.Element{}, granted: map[client.ObjectKey]bool{},
	}
	for i := range w.queues {
		w.queues[i] = list.New()
	}
	return w
}

// request reports whether the status of a Tunnel may be written now. If not, the Tunnel is queued.
func (w *writeQueue) request(key client.ObjectKey, u urgency) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.granted[key] {
		delete(w.granted, key)
		w.notify()
		return true
	}
	now := time.Now()
	w.refill(now)
	if len(w.places) == 0 && w.tokens >= 1 && w.take(u) {
		return true
	}
	since := now
	if at := w.places[key]; at != nil {
		p := at.Value.(place)
		if p.urgency == u {
			return false
		}
		w.remove(at)
		since = p.since
	}
	w.places[key] = w.queues[u].PushBack(place{key, u, since})
	w.notify()
	return false
}

// spend counts writes that did not wait for a turn.
func (w *writeQueue) spend(writes int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokens -= float64(writes)
}

// returnTurn returns the turn of a Tunnel whose write was a conflict.
func (w *writeQueue) returnTurn(key client.ObjectKey) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.places[key]; at != nil {
		w.remove(at)
	}
	w.tokens--
	w.granted[key] = true
}

// leave removes a Tunnel that has nothing to write, or cannot write.
func (w *writeQueue) leave(key client.ObjectKey) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at := w.places[key]; at != nil {
		w.remove(at)
	}
	if w.granted[key] {
		delete(w.granted, key)
		w.tokens++
		w.notify()
	}
}

// run grants turns until ctx ends, and calls then for each Tunnel that gets one.
func (w *writeQueue) run(ctx context.Context, then func(client.ObjectKey)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.changed:
		}
		keys, wait := w.grant(time.Now())
		for _, key := range keys {
			then(key)
		}
		timer.Reset(wait)
	}
}

// grant grants the available turns, and returns those Tunnels and the time until the next grant.
func (w *writeQueue) grant(now time.Time) (keys []client.ObjectKey, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refill(now)
	for len(w.places) > 0 && len(w.granted) < unusedTurns {
		if w.tokens < 1 {
			return keys, seconds((1 - w.tokens) / w.rate)
		}
		next := w.next()
		p := next.Value.(place)
		if !w.take(p.urgency) {
			return keys, seconds((1 - w.spare) * seenShare / w.rate)
		}
		w.remove(next)
		w.granted[p.key] = true
		w.turns++
		keys = append(keys, p.key)
	}
	return keys, time.Hour // a notification comes first
}

// next returns the Tunnel that has the next turn. The caller holds the lock, and the queue is not empty.
func (w *writeQueue) next() *list.Element {
	var first, longest *list.Element
	for u, queue := range w.queues {
		at := queue.Front()
		if at == nil || (urgency(u) == seen && first != nil) {
			continue
		}
		if first == nil {
			first = at
		}
		if longest == nil || at.Value.(place).since.Before(longest.Value.(place).since) {
			longest = at
		}
	}
	if w.turns%longestWaitShare == longestWaitShare-1 {
		return longest
	}
	return first
}

// take consumes the cost of a write, if available. The caller holds the lock, and there is a token.
func (w *writeQueue) take(u urgency) bool {
	if u == seen {
		if w.spare < 1 {
			return false
		}
		w.spare--
	}
	w.tokens--
	return true
}

// remove removes a Tunnel from the queue. The caller holds the lock.
func (w *writeQueue) remove(at *list.Element) {
	p := at.Value.(place)
	w.queues[p.urgency].Remove(at)
	delete(w.places, p.key)
}

// refill adds the tokens since the last call. The caller holds the lock.
func (w *writeQueue) refill(now time.Time) {
	more := w.rate * now.Sub(w.at).Seconds()
	w.at = now
	w.tokens = min(w.tokens+more, w.rate)
	w.spare = min(w.spare+more/seenShare, max(1, w.rate/seenShare))
}

// notify makes run grant turns again. The caller holds the lock.
func (w *writeQueue) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// seconds converts to a duration and rounds up, because waking too early would be useless.
func seconds(s float64) time.Duration {
	return time.Duration(s*float64(time.Second)) + time.Millisecond
}

// urgencyOf returns the urgency of a change of a status.
func urgencyOf(before, after v1alpha1.TunnelStatus) urgency {
	u := minor
	if onlySeen(before, after) {
		u = seen
	}
	for _, c := range after.Conditions {
		was := apimeta.FindStatusCondition(before.Conditions, c.Type)
		switch {
		case was != nil && was.Status == c.Status:
		case was != nil && was.Status == metav1.ConditionTrue:
			return worse
		default:
			u = flipped
		}
	}
	for i := range after.Edges {
		// New edges are appended, so an existing edge keeps its index or moves to a lower one.
		if i < len(before.Edges) && !sameCut(before.Edges[i], after.Edges[i]) {
			return worse
		}
	}
	return u
}

func sameCut(a, b v1alpha1.EdgeStatus) bool {
	return a.NodeID != b.NodeID || (a.RevokedAt.Equal(b.RevokedAt) && a.CutAt.Equal(b.CutAt))
}

// onlySeen reports whether two statuses differ only in when edges were seen.
func onlySeen(before, after v1alpha1.TunnelStatus) bool {
	if len(before.Edges) != len(after.Edges) {
		return false
	}
	unseen := func(s v1alpha1.TunnelStatus) v1alpha1.TunnelStatus {
		out := *s.DeepCopy()
		for i := range out.Edges {
			out.Edges[i].LastSeen = nil
		}
		return out
	}
	return equality.Semantic.DeepEqual(unseen(before), unseen(after))
}

var urgencyNames = [urgencies]string{worse: "worse", flipped: "flipped", minor: "minor", seen: "seen"}

// waiting returns how many writes are waiting, by the name of their urgency. A nil queue has none.
func (w *writeQueue) waiting() map[string]int {
	n := map[string]int{}
	for _, name := range urgencyNames {
		n[name] = 0
	}
	if w == nil {
		return n
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for u, queue := range w.queues {
		n[urgencyNames[u]] = queue.Len()
	}
	return n
}
