package reconciler

import (
	"sync"
	"testing"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestKeysAreAddedWhileAControllerStarts: the race detector reports a queue that is stored without care.
func TestKeysAreAddedWhileAControllerStarts(t *testing.T) {
	var q Queue
	q.Add(client.ObjectKey{Name: "too early"})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	var adding sync.WaitGroup
	for range 4 {
		adding.Go(func() {
			for range 100 {
				q.Add(client.ObjectKey{Name: "c1"})
			}
		})
	}
	if err := q.Begin(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	adding.Wait()
	q.Add(client.ObjectKey{Name: "c1"})
	if request, _ := queue.Get(); request.Name != "c1" || queue.Len() != 0 {
		t.Errorf("got %s, and %d more", request.Name, queue.Len())
	}
}
