package reconciler

import (
	"context"
	"sync/atomic"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
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

// Enqueue enqueues requests with a priority: 0 is that of an event, and a request with a higher one is processed first.
// A request that is in the queue with a higher priority keeps it.
func Enqueue(
	queue workqueue.TypedRateLimitingInterface[reconcile.Request], priority int, requests ...reconcile.Request,
) {
	if ordered, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		ordered.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, requests...)
		return
	}
	for _, request := range requests {
		queue.Add(request)
	}
}

// Timed gives the repetition of a reconciliation after a wait low priority. Otherwise the repetition has the priority
// of the last event, also if a pass over all objects enqueues it before the wait is over, and the pass delays new
// events.
func Timed(result reconcile.Result) reconcile.Result {
	if result.RequeueAfter > 0 {
		result.Priority = ptr.To(handler.LowPriority)
	}
	return result
}
