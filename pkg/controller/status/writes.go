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

// urgency is how soon a status has to be written, when many have to.
type urgency int

const (
	worse   urgency = iota // a condition is True no more, or an edge was revoked
	flipped                // another condition has changed
	minor                  // anything else
	seen                   // only when an edge was seen last
	urgencies
)

const (
	// defaultStatusWrites has 10,000 Tunnels written in little more than a minute, with the conditions of their Clusters
	// in two.
	defaultStatusWrites = 150
	// seenShare is the part of the rate that lastSeen has: it is never urgent, and there is always some of it.
	seenShare = 20
	// longestWaitShare says that one of so many turns goes to the Tunnel that waits longest, so that none waits for ever.
	longestWaitShare = 4
	// unusedTurns is how many may have a turn that they have not used yet: more than there are workers, so that none is
	// idle.
	unusedTurns = 2 * liveWorkers
)

// writeQueue bounds how often live state is written to the apiserver, over all Tunnels. Who may not write now waits
// for a turn, and writes then what there is to write then. It is safe for concurrent use; nil bounds nothing.
type writeQueue struct {
	rate float64 // a second; as many may come at once
	poke chan struct{}

	mu      sync.Mutex
	at      time.Time // of the next two
	tokens  float64   // less than none: more than one write was spent at once
	spare   float64   // of seen
	turns   int       // given so far
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
		rate: float64(perSecond), tokens: float64(perSecond), spare: 1, at: time.Now(), poke: make(chan struct{}, 1),
		places: map[client.ObjectKey]*list.Element{}, granted: map[client.ObjectKey]bool{},
	}
	for i := range w.queues {
		w.queues[i] = list.New()
	}
	return w
}

// ask says whether the status of a Tunnel may be written now. If not, it has its turn later.
func (w *writeQueue) ask(key client.ObjectKey, u urgency) bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.granted[key] {
		delete(w.granted, key)
		w.wake()
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
	w.wake()
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

// again gives back the turn of a Tunnel whose write was a conflict.
func (w *writeQueue) again(key client.ObjectKey) {
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

// leave removes a Tunnel that has nothing to write, or can't.
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
		w.wake()
	}
}

// run gives turns until ctx ends: then is called with each Tunnel that has got one.
func (w *writeQueue) run(ctx context.Context, then func(client.ObjectKey)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.poke:
		}
		keys, wait := w.grant(time.Now())
		for _, key := range keys {
			then(key)
		}
		timer.Reset(wait)
	}
}

// grant gives the turns that there are now, and returns when to look again.
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
	return keys, time.Hour // there is a poke before
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

// take takes what a write costs, if that is there. The lock is held, and there is a token.
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

// remove takes a Tunnel out of the queue. The caller holds the lock.
func (w *writeQueue) remove(at *list.Element) {
	p := at.Value.(place)
	w.queues[p.urgency].Remove(at)
	delete(w.places, p.key)
}

// refill adds what has come since the last time. The lock is held.
func (w *writeQueue) refill(now time.Time) {
	more := w.rate * now.Sub(w.at).Seconds()
	w.at = now
	w.tokens = min(w.tokens+more, w.rate)
	w.spare = min(w.spare+more/seenShare, max(1, w.rate/seenShare))
}

// wake has run look again. The lock is held.
func (w *writeQueue) wake() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// seconds is a little more than so many: less would be a look for nothing.
func seconds(s float64) time.Duration {
	return time.Duration(s*float64(time.Second)) + time.Millisecond
}

// urgencyOf says how soon a change of a status has to be written.
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
		// New ones come last, so the index of one that was there is the same or less.
		if i < len(before.Edges) && !sameCut(before.Edges[i], after.Edges[i]) {
			return worse
		}
	}
	return u
}

func sameCut(a, b v1alpha1.EdgeStatus) bool {
	return a.NodeID != b.NodeID || (a.RevokedAt.Equal(b.RevokedAt) && a.CutAt.Equal(b.CutAt))
}

// onlySeen says that nothing differs but when edges were seen.
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

// waiting returns how many writes wait for their turn, by the name of their urgency. Of nil none wait.
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
