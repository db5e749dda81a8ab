package scale

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/test/bench/fleet"
	"github.com/fairlead/fairlead/test/bench/record"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/synthetic"
)

const (
	// dayClusters is the number of workload clusters of RunDay. ClustersEnv overrides it.
	dayClusters = 1_000
	// hour is how long a simulated hour takes.
	hour = 30 * time.Second
	// hours is the length of a simulated day, and leafHours the life of a leaf. Ids of ended tunnels are denied for that
	// long, so that figures must stay flat after the first settled hours.
	hours, leafHours, settled = 24, 6, 8
	// In an hour one edge of renewing renews its leaf, as all do after two thirds of its life, and each of so many
	// Clusters is replaced by another one and gets another name.
	renewing, replaced = 4, 20
	// heapInterval is the time between two looks at the heaps: ten in an hour.
	heapInterval = 3 * time.Second
)

// ClustersEnv is the environment variable that overrides the number of workload clusters of RunDay.
const ClustersEnv = "DAY_CLUSTERS"

// today is the state of a simulated day.
type today struct {
	*world
	out      record.Options
	next     int               // number of the next Cluster
	clusters []int             // the present Clusters, oldest first
	edges    []*synthetic.Edge // of the same Clusters
	controls []*synthetic.Control
	sources  int // addresses that edges have had so far
	renewed  int
	changed  int
}

// RunDay measures memory, goroutines and open files of every component in each hour of a simulated day: leaves are
// renewed, tunnels and control channels open again with them, and workload clusters come, go and change. It adds the
// figures of some hours, and how much each grows from hour to hour once all has settled, by least squares. If one grows
// by more than its bound, it returns an error. A quick run is too short for that.
func RunDay(ctx context.Context, log *record.Log, o record.Options) error {
	n, err := dayClustersOf(os.Getenv(ClustersEnv))
	if err != nil {
		return err
	}
	r := &results{log: log, out: o, size: n, growth: growth{}}
	w, err := newWorld(ctx, fleet.Options{
		Tunnels: 1, Metrics: true, Controller: []string{"--leaf-lifetime=" + (leafHours * hour).String()},
	})
	if err != nil {
		return err
	}
	defer w.Close(ctx)
	d := &today{world: w, out: o}
	defer d.closeAll()
	if err := d.morning(ctx, n); err != nil {
		return err
	}
	figures := map[figure][]float64{}
	length := o.Rounds(hours, 3)
	for h := range length {
		if err := d.pass(ctx, h, figures); err != nil {
			return err
		}
	}
	r.add("renewed leaves", "", float64(d.renewed))
	r.add("replaced Clusters", "", float64(d.next-n))
	r.add("changed Tunnels", "", float64(d.changed))
	for _, f := range slices.SortedFunc(maps.Keys(figures), figure.compare) {
		values := figures[f]
		for _, h := range slices.Compact([]int{1, min(settled, length), length}) {
			r.of(f.subject, fmt.Sprintf("%s after hour %d", f.name, h), "", values[h-1], values...)
		}
		if late := values[min(settled, length):]; len(late) > 2 {
			r.of(f.subject, f.name+" grows in an hour by", "", trendOf(late).slope)
		}
	}
	if length < hours {
		o.Printf("too short to tell what grows: that takes %d hours", hours)
		return nil
	}
	return flat(figures)
}

// dayClustersOf returns the number of workload clusters for a value of ClustersEnv.
func dayClustersOf(text string) (int, error) {
	if text == "" {
		return dayClusters, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2*replaced {
		return 0, fmt.Errorf("%s: %q is no number of workload clusters of at least %d", ClustersEnv, text, 2*replaced)
	}
	return n, nil
}

// pass lives through an hour, and adds its figures.
func (d *today) pass(ctx context.Context, h int, figures map[figure][]float64) error {
	ends := time.Now().Add(hour)
	watching, stop := context.WithCancel(ctx)
	heaps, ended := map[string]float64{}, make(chan struct{})
	go func() {
		defer close(ended)
		d.watchHeaps(watching, heaps)
	}()
	err := d.live(ctx)
	if late := time.Until(ends); late < 0 {
		d.out.Printf("hour %d took %s longer", h, -late.Round(time.Second))
	}
	if err == nil {
		err = retry.Sleep(ctx, time.Until(ends))
	}
	stop()
	<-ended
	if err != nil {
		return fmt.Errorf("living through hour %d: %w", h, err)
	}
	return d.note(ctx, heaps, figures)
}

// watchHeaps reads the heap of each component until ctx ends, and keeps the least value in bytes: a garbage collection
// also keeps what is allocated while it runs. A value that cannot be read is left out, because there is another one
// soon.
func (d *today) watchHeaps(ctx context.Context, least map[string]float64) {
	keep := func(name string, bytes float64) {
		if before, ok := least[name]; !ok || bytes < before {
			least[name] = bytes
		}
	}
	for {
		for _, t := range d.Targets() {
			goal, err := t.Value(ctx, "go_memstats_next_gc_bytes")
			stacks, failed := t.Value(ctx, "go_memstats_stack_inuse_bytes")
			if err == nil && failed == nil {
				keep(t.Job, liveHeap(float64(goal), float64(stacks)))
			}
			if t.Job != "gateway-agent" {
				continue
			}
			if used, err := t.Heap(ctx); err == nil {
				keep("gateway", float64(used))
			}
		}
		if retry.Sleep(ctx, heapInterval) != nil {
			return
		}
	}
}

// morning creates all Clusters with their edges and control channels.
func (d *today) morning(ctx context.Context, n int) error {
	if err := d.add(ctx, n); err != nil {
		return err
	}
	return d.allUp(ctx, n)
}

// add creates Clusters, and starts their edges.
func (d *today) add(ctx context.Context, n int) error {
	first := d.next
	d.next += n
	for i := first; i < d.next; i++ {
		if err := d.create(ctx, i); err != nil {
			return err
		}
		d.clusters = append(d.clusters, i)
	}
	for i := first; i < d.next; i++ {
		id, err := d.id(ctx, i, patience+time.Duration(n)*allPatience)
		if err != nil {
			return err
		}
		e, err := d.Edge(id)
		if err != nil {
			return err
		}
		if err := d.begin(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// id waits until the Tunnel of a Cluster has an id, and returns it.
func (d *today) id(ctx context.Context, i int, timeout time.Duration) (id string, err error) {
	err = proc.Wait(ctx, timeout, func(ctx context.Context) error {
		tunnel := &v1alpha1.Tunnel{}
		err := d.Management.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name(i)}, tunnel)
		if id = tunnel.Spec.ID; err == nil && id == "" {
			err = fmt.Errorf("the Tunnel %s has no id", name(i))
		}
		return err
	})
	return id, err
}

// begin starts an edge and opens its control channel.
func (d *today) begin(ctx context.Context, e *synthetic.Edge) error {
	e.Start()
	d.sources++
	var c *synthetic.Control
	err := proc.Wait(ctx, patience, func(ctx context.Context) (err error) { // the xds-server may not know the tunnel yet
		c, err = d.Follow(ctx, e, d.sources)
		return err
	})
	if err != nil {
		return err
	}
	d.edges, d.controls = append(d.edges, e), append(d.controls, c)
	return nil
}

// live does what happens in an hour.
func (d *today) live(ctx context.Context) error {
	for range len(d.clusters) / renewing {
		if err := d.renew(ctx); err != nil {
			return err
		}
	}
	for i := range replaced {
		extra := fmt.Sprintf("api-%d.example.org", d.changed)
		if _, err := d.changeOne(ctx, d.clusters[len(d.clusters)-1-i], extra); err != nil {
			return err
		}
		d.changed++
	}
	for i := range replaced { // so that in the end there are as many names as in the beginning
		if err := d.unname(ctx, d.clusters[len(d.clusters)-1-i]); err != nil {
			return err
		}
	}
	for range replaced {
		if err := d.removeOldest(ctx); err != nil {
			return err
		}
	}
	if err := d.removeRequests(ctx); err != nil {
		return err
	}
	return d.add(ctx, replaced)
}

// removeRequests deletes the requests for certificates that are older than an hour, as Kubernetes' controller manager
// does, which does not run here.
func (d *today) removeRequests(ctx context.Context) error {
	var all certificatesv1.CertificateSigningRequestList
	if err := d.Management.Client.List(ctx, &all); err != nil {
		return fmt.Errorf("listing requests for certificates: %w", err)
	}
	for i := range all.Items {
		request := &all.Items[i]
		if time.Since(request.CreationTimestamp.Time) < hour {
			continue
		}
		if err := d.Management.Client.Delete(ctx, request); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting request %s: %w", request.Name, err)
		}
	}
	return nil
}

// renew renews the leaf of the edge that has had its own for longest, and opens its connections again. Its Cluster
// becomes the newest one.
func (d *today) renew(ctx context.Context) error {
	csr, err := d.CSR()
	if err != nil {
		return err
	}
	old, control, cluster := d.edges[0], d.controls[0], d.clusters[0]
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	chain, err := control.Renew(short, csr)
	if err != nil {
		return err
	}
	d.dropFirst()
	e, err := d.Renewed(old, chain)
	if err != nil {
		return err
	}
	d.clusters = append(d.clusters, cluster)
	d.renewed++
	return d.begin(ctx, e)
}

// removeOldest deletes the Cluster of the first edge, and stops the edge.
func (d *today) removeOldest(ctx context.Context) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name(d.clusters[0])}}
	d.dropFirst()
	if err := d.Management.Client.Delete(ctx, cluster); err != nil {
		return fmt.Errorf("deleting %s: %w", cluster.Name, err)
	}
	// Kubernetes' garbage collector does not run here.
	meta := func(suffix string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: cluster.Name + suffix}
	}
	for _, owned := range []client.Object{
		&v1alpha1.Tunnel{ObjectMeta: meta("")},
		&corev1.Secret{ObjectMeta: meta(v1alpha1.BootstrapSecretSuffix)}, &corev1.Secret{ObjectMeta: meta(kubeconfig.Suffix)},
	} {
		if err := d.Management.Client.Delete(ctx, owned); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %T %s: %w", owned, owned.GetName(), err)
		}
	}
	return nil
}

// dropFirst stops the first edge and forgets it.
func (d *today) dropFirst() {
	d.edges[0].Stop()
	_ = d.controls[0].Close()
	d.edges, d.controls, d.clusters = d.edges[1:], d.controls[1:], d.clusters[1:]
}

func (d *today) closeAll() {
	for _, c := range d.controls {
		_ = c.Close()
	}
}

// note adds the present figures of each component, and its least heap.
func (d *today) note(ctx context.Context, heaps map[string]float64, figures map[figure][]float64) error {
	goroutines := map[string]float64{}
	for _, t := range d.Targets() {
		n, err := t.Goroutines(ctx)
		if err != nil {
			return err
		}
		goroutines[t.Job] = float64(n)
	}
	for _, c := range d.components() {
		pid, err := c.pid()
		if err != nil {
			return err
		}
		memory, err := proc.RSS(pid)
		if err != nil {
			return err
		}
		files, err := proc.Files(pid)
		if err != nil {
			return err
		}
		add := func(what string, value float64) {
			f := figure{what, c.name}
			figures[f] = append(figures[f], value)
		}
		heap, ok := heaps[c.name]
		if !ok {
			return fmt.Errorf("measuring the heap of %s: it could not be read for an hour", c.name)
		}
		add(heapFigure, heap/1e6)
		add(memoryFigure, float64(memory)/1e6)
		add(filesFigure, float64(files))
		if n, ok := goroutines[c.name]; ok {
			add(goroutinesFigure, n)
		}
		d.out.Printf(
			"%-14s %8.1f MB heap %8.1f MB %6d files %6.0f goroutines", c.name, heap/1e6, float64(memory)/1e6, files,
			goroutines[c.name],
		)
	}
	return nil
}
