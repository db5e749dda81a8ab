package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// controllerMemoryLimit is about twice what the controller needs for a few workload clusters.
	controllerMemoryLimit = 160 << 20
	// crowdSize is how many workload clusters change all the time, and changers how many clients change them.
	crowdSize, changers = 64, 4
	crowdNamespace      = "crowd"
)

// overloadController overloads the controller with changes: each of a crowd of Clusters changes again before the
// controller has processed its last change.
func overloadController(t *testing.T, w *world.World, quiet *world.Member) {
	controller := w.Controllers[0]
	group, name := limit(t, controller, "controller", controllerMemoryLimit)
	must(t, controller.WaitReady(t.Context(), proc.StartTimeout, w.ControllerReady))
	c := newCrowd(t, w)
	stop := c.change(t)
	// until the queue is full for the first time
	eventually(t, func(ctx context.Context) error {
		waiting, err := c.target.Sum(ctx, "workqueue_depth", `controller="tunnel"`)
		if err == nil && waiting < crowdSize/4 {
			err = fmt.Errorf("%.0f changes wait", waiting)
		}
		return err
	})
	that(t, "a controller with more changes than it can process merges those of one workload cluster", func(t *testing.T) {
		busy, samples := 0, 0
		begin, changed := time.Now(), c.changed.Load()
		processed := c.processed(t)
		for time.Since(begin) < 5*time.Second {
			waiting, err := c.target.Sum(t.Context(), "workqueue_depth", `controller="tunnel"`)
			must(t, err)
			if samples++; waiting > 0 {
				busy++
			}
			time.Sleep(50 * time.Millisecond)
		}
		seconds := time.Since(begin).Seconds()
		measured("overload_changes_per_s", float64(c.changed.Load()-changed)/seconds)
		measured("overload_processed_per_s", (c.processed(t)-processed)/seconds)
		measured("overload_busy_ratio", float64(busy)/float64(samples))
		if busy*2 < samples {
			t.Errorf("changes wait at %d of %d moments, so this is no overload", busy, samples)
		}
	})
	that(t, "meanwhile a new edge gets its certificate, and a new workload cluster is reached", func(t *testing.T) {
		began := time.Now()
		w.Edge(t, lab.EdgeSpec{Name: "overload-edge"}, quiet)
		measured("overload_edge_s", time.Since(began).Seconds())
		began = time.Now()
		hurried := w.Member(t, "hurried", nil)
		w.Edge(t, lab.EdgeSpec{Name: "hurried"}, hurried)
		measured("overload_cluster_s", time.Since(began).Seconds())
		if took := time.Since(began); took > recovery {
			t.Errorf("a new workload cluster is reached after %v", took)
		}
	})
	stop()
	that(t, "30 s after the overload every change has been processed", func(t *testing.T) {
		took := world.Took(t, recovery, c.settled)
		measured("overload_controller_recovery_s", took.Seconds())
		memory, err := group.Memory(name)
		must(t, err)
		measured("overload_controller_memory_mb", float64(memory.Highest>>20))
		if memory.Kills > 0 {
			t.Errorf("the kernel has killed %d processes", memory.Kills)
		}
		must(t, w.ControllerReady(t.Context()))
	})
}

// crowdOf are Clusters without edges.
type crowdOf struct {
	client  client.Client
	target  lab.Target
	changed atomic.Int64
	last    [crowdSize]atomic.Int64 // the last change of each
}

func newCrowd(t *testing.T, w *world.World) *crowdOf {
	t.Helper()
	c := &crowdOf{client: w.Management.Client, target: w.Targets()[0]}
	must(t, c.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowdNamespace}}))
	for i := range crowdSize {
		must(t, c.client.Create(t.Context(), &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: crowdNamespace, Name: clusterOf(i),
				Labels: map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
			},
			Spec: clusterv1.ClusterSpec{
				Paused:               ptr.To(false),
				ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.1", Port: 6443},
			},
		}))
	}
	eventually(t, func(ctx context.Context) error {
		_, err := c.tunnels(ctx)
		return err
	})
	return c
}

func clusterOf(i int) string { return fmt.Sprintf("crowd-%d", i) }

// tunnels returns the Tunnels of all of them by name.
func (c *crowdOf) tunnels(ctx context.Context) (map[string]*v1alpha1.Tunnel, error) {
	var list v1alpha1.TunnelList
	if err := c.client.List(ctx, &list, client.InNamespace(crowdNamespace)); err != nil {
		return nil, err
	}
	all := map[string]*v1alpha1.Tunnel{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	if len(all) < crowdSize {
		return nil, fmt.Errorf("%d of %d Clusters have a Tunnel", len(all), crowdSize)
	}
	return all, nil
}

// nameOf is the extra name that a Tunnel has after a change.
func nameOf(i int, change int64) string {
	return fmt.Sprintf("n%d.%s.example.com", change%2, clusterOf(i))
}

// change changes the extra names of the Tunnels, one after the other, until stop is called.
func (c *crowdOf) change(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var failed sync.Map
	for n := range changers {
		group.Go(func() {
			for change := int64(0); ctx.Err() == nil; change++ {
				for i := n; i < crowdSize && ctx.Err() == nil; i += changers {
					// Without the context, so that what was sent is known.
					if err := c.rename(context.WithoutCancel(ctx), i, change); err != nil {
						failed.Store(i, err)
						continue
					}
					failed.Delete(i)
					c.last[i].Store(change)
					c.changed.Add(1)
				}
			}
		})
	}
	return func() {
		cancel()
		group.Wait()
		var errs []error
		failed.Range(func(_, err any) bool { errs = append(errs, err.(error)); return true })
		must(t, errors.Join(errs...))
	}
}

// rename makes one change of a Tunnel.
func (c *crowdOf) rename(ctx context.Context, i int, change int64) error {
	patch := fmt.Sprintf(`{"spec":{"extraNames":[%q]}}`, nameOf(i, change))
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: crowdNamespace, Name: clusterOf(i)}}
	return c.client.Patch(ctx, tunnel, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// processed returns how many changes the controller has processed.
func (c *crowdOf) processed(t *testing.T) float64 {
	t.Helper()
	n, err := c.target.Sum(t.Context(), "controller_runtime_reconcile_total", `controller="tunnel"`)
	must(t, err)
	return n
}

// settled returns nil if the status of each Tunnel has its last change.
func (c *crowdOf) settled(ctx context.Context) error {
	all, err := c.tunnels(ctx)
	if err != nil {
		return err
	}
	for i := range crowdSize {
		tunnel, want := all[clusterOf(i)], nameOf(i, c.last[i].Load())
		if names := tunnel.Status.Names; len(names) != 2 || names[1] != want {
			return fmt.Errorf("%s has the names %v in its status, want %s among them", tunnel.Name, names, want)
		}
	}
	return nil
}
