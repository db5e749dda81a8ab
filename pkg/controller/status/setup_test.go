package status

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestATurnIsUsedBeforeAllEvents proves that the rate of writes does not depend on how many events wait.
func TestATurnIsUsedBeforeAllEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{writes: newWriteQueue(10)}
		queue := priorityqueue.New[reconcile.Request]("turns")
		defer queue.ShutDown()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.grantTurns(ctx, queue)
		for i := range 100 {
			queue.Add(reconcile.Request{NamespacedName: keyed("event", i)})
		}
		r.writes.spend(10)
		key := keyed("turn", 0)
		if r.writes.request(key, worse) {
			t.Fatal("it may write at once")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		request, _, _ := queue.GetWithPriority()
		if request.NamespacedName != key {
			t.Errorf("%s is reconciled before the Tunnel with a turn", request)
		}
		queue.Done(request)
	})
}

// TestARepetitionHasLowPriority: all Tunnels wait for a repetition most of the time, and a pass over all of them must
// not enqueue them among events. A change that waits has the priority of its event.
func TestARepetitionHasLowPriority(t *testing.T) {
	w := newConnectedWorld(t)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)}
	result, err := w.r.Reconcile(t.Context(), request)
	if err != nil || result.RequeueAfter <= writeInterval || result.Priority == nil ||
		*result.Priority != handler.LowPriority {
		t.Errorf("got %+v, %v", result, err)
	}
	result, err = w.r.Reconcile(t.Context(), request)
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > writeInterval || result.Priority != nil {
		t.Errorf("within the interval between two writes: got %+v, %v", result, err)
	}
}
