package reconciler

import (
	"context"
	"sync/atomic"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is the queue of a controller, for other controllers that enqueue keys in it. Its zero value is ready, and it is
// safe for concurrent use: controllers start in any order.
type Queue struct {
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]] // nil before the start
}

// Begin stores the queue. It is a source.Func, with which a controller passes its queue when it starts.
func (q *Queue) Begin(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	q.queue.Store(&queue)
	return nil
}

// Add enqueues a key. Before the controller has started it does nothing: a controller enqueues all existing objects at
// its start.
func (q *Queue) Add(key client.ObjectKey) {
	if queue := q.queue.Load(); queue != nil {
		(*queue).Add(reconcile.Request{NamespacedName: key})
	}
}
