package records

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// slowRecord is a record of ended tunnels with one entry, whose first write hangs.
type slowRecord struct {
	*EndedTunnels
	api     client.Client
	began   chan struct{} // closed when the first write begins
	release chan struct{} // close it to let the first write continue
	writes  atomic.Int64
}

func newSlowRecord(t *testing.T) *slowRecord {
	t.Helper()
	api := controllertest.FakeAPI(t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: v1alpha1.EndedTunnelsConfigMapName},
		Data:       map[string]string{"earlier": time.Now().UTC().Format(time.RFC3339)},
	})
	r := &slowRecord{api: api, began: make(chan struct{}), release: make(chan struct{})}
	slow := interceptor.NewClient(api, interceptor.Funcs{Patch: func(
		ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption,
	) error {
		if r.writes.Add(1) == 1 {
			close(r.began)
			select {
			case <-r.release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return c.Patch(ctx, o, patch, opts...)
	}})
	r.EndedTunnels = NewEndedTunnels(slow, slow, "fairlead-system", time.Now)
	if err := r.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// end adds tunnels concurrently, and waits until all of them wait for the record.
func (r *slowRecord) end(t *testing.T, ids ...string) <-chan error {
	t.Helper()
	r.mu.Lock()
	before := len(r.waiting)
	r.mu.Unlock()
	results := make(chan error, len(ids))
	for _, id := range ids {
		go func() { results <- r.Add(t.Context(), id, time.Now().Add(time.Hour)) }()
	}
	controllertest.Eventually(t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n := len(r.waiting) - before; n != len(ids) {
			return fmt.Errorf("%d of %d wait", n, len(ids))
		}
		return nil
	})
	return results
}

// check checks that tunnels are on record.
func (r *slowRecord) check(t *testing.T, ids ...string) {
	t.Helper()
	stored := controllertest.Read(t, r.api, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: v1alpha1.EndedTunnelsConfigMapName},
	})
	for _, id := range append(ids, "earlier") {
		if !has(stored.Data, id) || !r.Has(id) {
			t.Errorf("%s is not on record", id)
		}
	}
	if n := len(r.waiting); n > 0 {
		t.Errorf("%d still wait", n)
	}
}

// TestEndsAreRecordedTogether proves that Has does not wait for a write, and that tunnels that end during a write are
// recorded by one.
func TestEndsAreRecordedTogether(t *testing.T) {
	r := newSlowRecord(t)
	first := r.end(t, "first")
	<-r.began
	var others []string
	for i := range 15 {
		others = append(others, fmt.Sprintf("other-%d", i))
	}
	results := r.end(t, others...)
	had := make(chan bool, 1)
	go func() { had <- r.Has("earlier") && !r.Has("first") }()
	select {
	case ok := <-had:
		if !ok {
			t.Error("during a write the record is not as before")
		}
	case <-time.After(20 * time.Second):
		t.Error("Has waits for a write")
	}
	close(r.release)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	for range others {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	if n := r.writes.Load(); n != 2 {
		t.Errorf("%d writes, want 2", n)
	}
	r.check(t, append(others, "first")...)
}

// TestAnEndThatIsCancelledFailsNoOther cancels the call that writes for others too.
func TestAnEndThatIsCancelledFailsNoOther(t *testing.T) {
	r := newSlowRecord(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := &addition{id: "other", until: time.Now().UTC().Format(time.RFC3339)}
	r.waiting = []*addition{other}
	if err := r.Add(ctx, "cancelled", time.Now()); !errors.Is(err, context.Canceled) {
		t.Fatalf("the cancelled call returned %v", err)
	}
	if other.done || len(r.waiting) != 1 {
		t.Fatalf("the other is done: %t, %d wait", other.done, len(r.waiting))
	}
	if err := r.Add(t.Context(), "next", time.Now()); err != nil || !other.done || other.err != nil {
		t.Errorf("got %v, and the other is %+v", err, other)
	}
	r.check(t, "other", "next")
}
