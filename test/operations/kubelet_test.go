package operations

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab"
)

const (
	// syncInterval is the time between two syncs of the workloads.
	syncInterval = 250 * time.Millisecond
	// grace is how long a Pod may take to stop.
	grace = 45 * time.Second
)

// kubelet simulates what Kubernetes does with the Deployments and the StatefulSet of the installation: it starts, stops
// and replaces the lab's processes, and writes the status. It has at most as many Pods as the lab has processes.
type kubelet struct {
	lab *lab.Lab
	// begin is called before Pods of a template are started. An error simulates a container that exits at once.
	begin func(context.Context, *corev1.PodTemplateSpec) error

	mu    sync.Mutex // held while it works, and while there is no management cluster
	runs  map[string]*corev1.PodTemplateSpec
	last  error
	ended chan struct{}
}

// newKubelet begins while all processes of the lab are running.
func newKubelet(t *testing.T, l *lab.Lab) *kubelet {
	t.Helper()
	k := &kubelet{lab: l, runs: map[string]*corev1.PodTemplateSpec{}, ended: make(chan struct{})}
	for _, w := range k.workloads() {
		must(t, w.read(t.Context(), l.Management.Client))
		k.runs[w.name()] = w.template().DeepCopy()
	}
	ctx, cancel := context.WithCancel(context.Background())
	go k.run(ctx)
	t.Cleanup(func() { cancel(); <-k.ended })
	return k
}

func (k *kubelet) run(ctx context.Context) {
	defer close(k.ended)
	ticker := time.NewTicker(syncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		k.mu.Lock()
		for _, w := range k.workloads() {
			if err := k.sync(ctx, w); err != nil && ctx.Err() == nil {
				k.last = fmt.Errorf("%s: %w", w.name(), err)
			}
		}
		k.mu.Unlock()
	}
}

// without runs a function that stops all processes, while the kubelet is paused. The kubelet then starts every workload
// again.
func (k *kubelet) without(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
	k.runs = map[string]*corev1.PodTemplateSpec{}
}

// hold runs a function while the kubelet is paused.
func (k *kubelet) hold(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
}

// err returns the last error.
func (k *kubelet) err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// sync reconciles one workload.
func (k *kubelet) sync(ctx context.Context, w workload) error {
	err := w.read(ctx, k.lab.Management.Client)
	if client.IgnoreNotFound(err) != nil {
		return nil // without an apiserver, running processes continue
	}
	running := k.runs[w.name()]
	wanted := !apierrors.IsNotFound(err) && w.replicas() > 0
	switch {
	case running != nil && !wanted:
		k.runs[w.name()] = nil
		err = k.all(ctx, w, w.end)
	case wanted && running == nil:
		err = k.start(ctx, w, w.start)
	case wanted && !equality.Semantic.DeepEqual(running, w.template()):
		err = k.start(ctx, w, w.replace)
	default:
		err = nil
	}
	if err != nil || w.gone() {
		return err
	}
	return w.report(ctx, k.lab.Management.Client, wanted)
}

// start starts the Pods of a workload, one after the other.
func (k *kubelet) start(ctx context.Context, w workload, one func(context.Context, int) error) error {
	if k.begin != nil {
		if err := k.begin(ctx, w.template()); err != nil {
			return err
		}
	}
	template := w.template().DeepCopy()
	if err := k.all(ctx, w, one); err != nil {
		return err
	}
	k.runs[w.name()] = template
	return nil
}

func (k *kubelet) all(ctx context.Context, w workload, one func(context.Context, int) error) error {
	for i := range w.len() {
		if err := one(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (k *kubelet) workloads() []workload {
	return []workload{
		&deployment{
			id:   "controller",
			lab:  k.lab,
			pods: k.lab.ControllerPods(),
		}, &deployment{id: "xds-server", lab: k.lab, pods: k.lab.XDSServerPods()}, &gateways{lab: k.lab},
	}
}
