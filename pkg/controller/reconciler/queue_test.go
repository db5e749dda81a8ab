package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
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

// twoTunnels returns a reader of the Tunnels "a" and "b" with the index by id.
func twoTunnels(t *testing.T) client.WithWatch {
	t.Helper()
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	var all []client.Object
	for _, name := range []string{"a", "b"} {
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name}}
		tunnel.Spec.ID = "id-of-" + name
		all = append(all, tunnel)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).
		WithIndex(&v1alpha1.Tunnel{}, TunnelIDIndex, TunnelIDOf).Build()
}

// TestAPassOverAllTunnelsDelaysNoEvent enqueues all Tunnels, and then an event. One of the Tunnels has had an event
// before, and waits for its repetition.
func TestAPassOverAllTunnelsDelaysNoEvent(t *testing.T) {
	api := twoTunnels(t)
	queue := priorityqueue.New[reconcile.Request]("pass")
	defer queue.ShutDown()
	ids, ended := workqueue.NewTyped[string](), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		EnqueueTunnels(ctx, api, slog.New(slog.DiscardHandler), ids, queue)
	}()
	defer func() { cancel(); <-ended }()
	next := func(name string, priority int) {
		t.Helper()
		request, got, _ := queue.GetWithPriority()
		if name != "" && request.Name != name || got != priority {
			t.Errorf("got %s with priority %d, want %q with %d", request, got, name, priority)
		}
		queue.Done(request)
	}
	requestOf := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "prod", Name: name}}
	}

	repetition := Timed(reconcile.Result{RequeueAfter: time.Hour})
	queue.AddWithOpts( // as controller-runtime does
		priorityqueue.AddOpts{After: repetition.RequeueAfter, Priority: repetition.Priority}, requestOf("a"),
	)
	ids.Add("")
	kubetest.Eventually(t, "waiting for the pass", func() error {
		if n := queue.Len(); n != 2 {
			return fmt.Errorf("%d are in the queue", n)
		}
		return nil
	})
	queue.Add(requestOf("new"))
	next("new", 0)
	next("", handler.LowPriority)
	next("", handler.LowPriority)

	ids.Add("id-of-b")
	next("b", 0)
}

// TestARequestIsEnqueuedInAQueueWithoutPriorities uses the queue of client-go.
func TestARequestIsEnqueuedInAQueueWithoutPriorities(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	Enqueue(queue, 1, reconcile.Request{NamespacedName: client.ObjectKey{Name: "c1"}})
	if request, _ := queue.Get(); request.Name != "c1" {
		t.Errorf("got %s", request)
	}
}
