// Package fleet is the base of benchmarks with many workload clusters: an installation with real programs (test/lab),
// without Cluster API's managers, and synthetic edges (test/synthetic). The edges have certificates of the
// installation's CA, and each has an in-memory apiserver behind it. Edges that need more sockets than one process may
// have run in several child processes.
package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
)

// Domain is the tunnel domain.
const Domain = model.TunnelDomain("tunnels.example.test")

const (
	// connecting is how many edges open a TCP connection at the same time. Each holds a thread of this process.
	connecting = 256
	// following is how many edges open their control channel at the same time, followAttempt how long one attempt may
	// take, and followTime all of one edge.
	following, followAttempt, followTime = 64, 20 * time.Second, 3 * time.Minute
	// pollInterval is the time between two counts of Tunnels.
	pollInterval = 200 * time.Millisecond
	// lifetime of certificates is longer than any benchmark.
	lifetime = 12 * time.Hour
)

// World is an installation with synthetic edges. The caller must close it.
type World struct {
	*lab.Lab
	*Simulation // of this process
}

// Options are what differs between installations.
type Options struct {
	Tunnels int // that each edge keeps, of those that are added later
	// Serving is the certificate of the workload apiservers; nil: the installation's CA issues one for the name
	// kubernetes.
	Serving    *tls.Certificate
	Controller []string // additional flags of the controller
	Metrics    bool     // programs serve metrics
	// Gateways is the number of gateways, one by default, and GatewaysPerTunnel to how many of them an edge keeps
	// tunnels; 0: to all.
	Gateways, GatewaysPerTunnel int
}

// New starts an installation and a fleet without edges.
func New(ctx context.Context, o Options) (_ *World, err error) {
	l, err := lab.New(ctx, lab.Options{
		Lean: true, TunnelDomain: string(Domain), LogLevel: "warn", ControllerFlags: o.Controller, Metrics: o.Metrics,
		Gateways: o.Gateways, GatewaysPerTunnel: o.GatewaysPerTunnel,
	})
	if err != nil {
		return nil, err
	}
	w := &World{Lab: l}
	defer func() {
		if err != nil {
			w.Close(ctx)
		}
	}()
	if err := l.Start(ctx); err != nil {
		kept, keeping := l.KeepLogs()
		return nil, errors.Join(fmt.Errorf("%w; logs are in %s", err, kept), keeping)
	}
	ca, err := l.CA(ctx)
	if err != nil {
		return nil, err
	}
	o.Gateways = len(l.Gateways)
	w.Simulation, err = newSimulation(ca, l.Network.Management, l.Network.Workload, o)
	return w, err
}

// Close stops everything.
func (w *World) Close(ctx context.Context) {
	if w.Simulation != nil {
		w.Simulation.Close()
	}
	w.Lab.Close(context.WithoutCancel(ctx))
}

// Create creates objects in the management cluster. Existing objects are not changed.
func (w *World) Create(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		if err := w.Management.Client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// CreateNamespace creates a namespace in the management cluster.
func (w *World) CreateNamespace(ctx context.Context, name string) error {
	return w.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// Tunnels waits until n Clusters of a namespace have a Tunnel. It returns the ids of the Tunnels by name.
func (w *World) Tunnels(
	ctx context.Context, namespace string, n int, timeout time.Duration,
) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for most := 0; ; {
		count, err := w.count(ctx, namespace)
		if most = max(most, count); err == nil && count >= n {
			ids, err := w.ids(ctx, namespace)
			if err != nil || len(ids) >= n {
				return ids, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for Tunnels: %d of %d Clusters have one: %w", most, n, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// count lists one Tunnel and reads the number of the remaining ones: listing thousands would load the apiserver that is
// measured.
func (w *World) count(ctx context.Context, namespace string) (int, error) {
	var one metav1.PartialObjectMetadataList
	one.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TunnelList"))
	if err := w.Management.Client.List(ctx, &one, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return 0, err
	}
	return len(one.Items) + int(ptr.Deref(one.RemainingItemCount, 0)), nil
}

func (w *World) ids(ctx context.Context, namespace string) (map[string]string, error) {
	var all v1alpha1.TunnelList
	if err := w.Management.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	ids := map[string]string{}
	for _, t := range all.Items {
		if t.Spec.ID != "" {
			ids[t.Name] = t.Spec.ID
		}
	}
	return ids, nil
}
