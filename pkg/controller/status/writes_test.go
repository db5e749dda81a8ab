package status

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func keyed(kind string, i int) client.ObjectKey {
	return client.ObjectKey{Namespace: kind, Name: fmt.Sprint(i)}
}

// turns runs writeQueue, lets each of some Tunnels write at its turn, and returns the order and the times.
func turns(t *testing.T, w *writeQueue) (order func() []client.ObjectKey) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var mu sync.Mutex
	var had []client.ObjectKey
	go w.run(ctx, func(key client.ObjectKey) {
		if !w.request(key, minor) {
			t.Errorf("%s had its turn and may not write", key)
		}
		mu.Lock()
		defer mu.Unlock()
		had = append(had, key)
	})
	return func() []client.ObjectKey {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(had)
	}
}

func TestDegradationsAreWrittenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriteQueue(100)
		order := turns(t, w)
		for i := range 1100 {
			if now := w.request(keyed("counted", i), minor); now != (i < 100) {
				t.Fatalf("Tunnel %d may write at once: %t", i, now)
			}
		}
		time.Sleep(time.Second)
		if n := len(order()); n < 95 || n > 101 {
			t.Errorf("%d had their turn in a second, at 100 a second", n)
		}
		for i := range 100 {
			w.request(keyed("seen", i), seen)
			w.request(keyed("worse", i), worse)
		}
		w.request(keyed("counted", 1099), worse) // it has become worse while it waited
		begin := len(order())
		time.Sleep(1400 * time.Millisecond)
		had := map[string]int{}
		for _, key := range order()[begin:] {
			had[key.Namespace]++
		}
		if had["worse"] != 100 || had["counted"] < 30 || had["counted"] > 41 ||
			!slices.Contains(order(), keyed("counted", 1099)) {
			t.Errorf("who had a turn: %v", had)
		}
		time.Sleep(9 * time.Second)
		all := order()
		if n := len(all); n < 1100 || all[1050].Namespace != "counted" {
			t.Fatalf("%d had their turn", n)
		}
		// Writes of lastSeen get a twentieth of the rate, and none while others wait.
		rest := all[1100:]
		if len(rest) > 10 {
			t.Errorf("%d times nothing was written but lastSeen", len(rest))
		}
		time.Sleep(4 * time.Second)
		if n := len(order()) - len(all); n != 20 {
			t.Errorf("in 4 s %d times nothing was written but lastSeen, at 5 a second", n)
		}
	})
}

func TestAnUnusedTurnGoesToAnotherObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriteQueue(10)
		var given atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.run(ctx, func(key client.ObjectKey) {
			given.Add(1)
			w.leave(key) // it has nothing to write any more
		})
		w.spend(20) // these writes did not ask for a turn
		for i := range 500 {
			w.request(keyed("c", i), minor)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := given.Load(); n != 0 {
			t.Errorf("%d turns although the next second was spent", n)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		w.mu.Lock()
		has, wait := len(w.granted), len(w.places)
		w.mu.Unlock()
		if n := given.Load(); n != 500 || has != 0 || wait != 0 {
			t.Errorf("%d turns, %d have one, %d wait", n, has, wait)
		}
		// A Tunnel whose write failed does not go to the end of the queue.
		w.returnTurn(keyed("c", 1))
		if !w.request(keyed("c", 1), minor) {
			t.Error("who wrote in vain may not write again")
		}
	})
}

func TestUnusedTurnsAreNotGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriteQueue(1000)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var given atomic.Int64
		go w.run(ctx, func(client.ObjectKey) { given.Add(1) })
		w.spend(1000)
		for i := range 500 {
			w.request(keyed("c", i), flipped)
		}
		time.Sleep(time.Minute) // the apiserver hangs, and the writers with it
		synctest.Wait()
		if n := given.Load(); n != int64(unusedTurns) {
			t.Errorf("%d turns were given, and none was used", n)
		}
	})
}

func TestUrgency(t *testing.T) {
	status := func(change func(*v1alpha1.TunnelStatus)) v1alpha1.TunnelStatus {
		s := v1alpha1.TunnelStatus{
			Edges: []v1alpha1.EdgeStatus{{
				NodeID: "CN=a", LastSeen: &metav1.Time{Time: time.Unix(1, 0)},
				Gateways: []v1alpha1.EdgeGatewayStatus{{Name: "gateway-0", Tunnels: 2}},
			}},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionTunnelReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConnected},
				{Type: v1alpha1.ConditionAPIServerReachable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUnknown},
			},
		}
		change(&s)
		return s
	}
	tests := map[string]struct {
		change func(*v1alpha1.TunnelStatus)
		want   urgency
	}{
		"an edge was seen": {
			func(s *v1alpha1.TunnelStatus) { s.Edges[0].LastSeen = &metav1.Time{Time: time.Unix(2, 0)} }, seen,
		},
		"a count": {func(s *v1alpha1.TunnelStatus) { s.Edges[0].Gateways[0].Tunnels = 1 }, minor},
		"a reason": {
			func(s *v1alpha1.TunnelStatus) { s.Conditions[0].Reason = v1alpha1.ReasonPartlyConnected }, minor,
		},
		"no tunnel": {func(s *v1alpha1.TunnelStatus) { s.Conditions[0].Status = metav1.ConditionFalse }, worse},
		"not known": {func(s *v1alpha1.TunnelStatus) { s.Conditions[0].Status = metav1.ConditionUnknown }, worse},
		"better":    {func(s *v1alpha1.TunnelStatus) { s.Conditions[1].Status = metav1.ConditionTrue }, flipped},
		"one better, one not": {
			func(s *v1alpha1.TunnelStatus) { s.Conditions[0].Status, s.Conditions[1].Status = "False", "True" }, worse,
		},
		"a further condition": {
			func(s *v1alpha1.TunnelStatus) { s.Conditions = append(s.Conditions, metav1.Condition{Type: "Ready"}) }, flipped,
		},
		"one more edge": {
			func(s *v1alpha1.TunnelStatus) { s.Edges = append(s.Edges, v1alpha1.EdgeStatus{NodeID: "CN=b"}) }, minor,
		},
		"a revoked edge": {
			func(s *v1alpha1.TunnelStatus) { s.Edges[0].RevokedAt = &metav1.Time{Time: time.Unix(2, 0)} }, worse,
		},
		"its tunnels were cut": {
			func(s *v1alpha1.TunnelStatus) { s.Edges[0].CutAt = &metav1.Time{Time: time.Unix(2, 0)} }, worse,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := urgencyOf(status(func(*v1alpha1.TunnelStatus) {}), status(tc.change)); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
