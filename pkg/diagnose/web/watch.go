package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// renewTime is how often all rows are created anew: some warnings depend on time, such as the end of a certificate, and
// round-trip times are measured again.
const renewTime = 30 * time.Second

// Watch reads all Clusters, Tunnels and RemoteNetworks of a management cluster, and then their changes, until ctx ends.
// It has its own cache, so that without a page none of it is in memory.
func (p *Page) Watch(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("registering types: %w", err)
	}
	objects, err := cache.New(config, cache.Options{Scheme: scheme, ByObject: map[client.Object]cache.ByObject{
		&clusterv1.Cluster{}: {Transform: stripCluster},
		&v1alpha1.Tunnel{}:   {Transform: stripTunnel},
	}, DefaultTransform: cache.TransformStripManagedFields()})
	if err == nil {
		err = objects.IndexField(ctx, &v1alpha1.RemoteNetwork{}, clusterIndex, func(o client.Object) []string {
			n, ok := o.(*v1alpha1.RemoteNetwork)
			if !ok {
				return nil
			}
			return []string{n.Spec.ClusterName}
		})
	}
	if err != nil {
		return fmt.Errorf("preparing to watch objects for the page: %w", err)
	}
	queue := workqueue.NewTyped[model.Key]() // holds each key once
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { enqueue(queue, o) },
		UpdateFunc: func(_, o any) { enqueue(queue, o) },
		DeleteFunc: func(o any) { enqueue(queue, o) },
	}
	for _, object := range []client.Object{&clusterv1.Cluster{}, &v1alpha1.Tunnel{}, &v1alpha1.RemoteNetwork{}} {
		informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			return fmt.Errorf("watching %T for the page: %w", object, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- objects.Start(ctx) }()
	if objects.WaitForCacheSync(ctx) {
		p.follow(ctx, objects, queue)
	}
	cancel()
	if err := <-ended; err != nil {
		return fmt.Errorf("watching objects for the page: %w", err)
	}
	return nil
}

// enqueue enqueues the Cluster whose row shows an object.
func enqueue(queue workqueue.TypedInterface[model.Key], object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	if key, ok := clusterOf(object); ok {
		queue.Add(key)
	}
}

// clusterOf returns the Cluster whose row shows an object; false: it is not known, and the status of the object's
// RemoteNetwork will change too.
func clusterOf(object any) (key model.Key, ok bool) {
	switch o := object.(type) {
	case *clusterv1.Cluster:
		key = model.Key{Namespace: o.Namespace, Name: o.Name}
	case *v1alpha1.Tunnel:
		key = model.Key{Namespace: o.Namespace, Name: o.ClusterName()}
	case *v1alpha1.RemoteNetwork:
		key = model.Key{Namespace: o.Namespace, Name: o.Spec.ClusterName}
	}
	return key, key.Name != ""
}

// follow creates rows until ctx ends: first all of them, and all again every renewTime.
func (p *Page) follow(ctx context.Context, objects client.Reader, queue workqueue.TypedInterface[model.Key]) {
	p.renew(ctx, objects)
	p.mu.Lock()
	p.read = true
	p.mu.Unlock()
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() {
		p.keep(ctx, objects)
		queue.ShutDown()
	})
	for {
		key, end := queue.Get()
		if end {
			return
		}
		p.update(ctx, objects, key)
		p.notify(key)
		queue.Done(key)
	}
}

// keep creates all rows again at an interval, and when the first reader arrives, which would otherwise wait for
// round-trip times.
func (p *Page) keep(ctx context.Context, objects client.Reader) {
	ticker := time.NewTicker(renewTime)
	defer ticker.Stop()
	var measured time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-p.first:
			if time.Since(measured) < renewTime {
				continue // readers that reconnect often must not cost more than one that stays
			}
		}
		if p.Live != nil && p.following.Load() > 0 {
			p.measure(ctx)
			measured = time.Now()
		}
		p.renew(ctx, objects)
	}
}

// measure queries the open tunnels.
func (p *Page) measure(ctx context.Context) {
	live := p.Live(ctx)
	p.mu.Lock()
	p.live = live
	p.mu.Unlock()
}

// renew creates all rows again.
func (p *Page) renew(ctx context.Context, objects client.Reader) {
	var clusters clusterv1.ClusterList
	var tunnels v1alpha1.TunnelList
	var networks v1alpha1.RemoteNetworkList
	if err := errors.Join(objects.List(ctx, &clusters, client.UnsafeDisableDeepCopy), objects.List(ctx, &tunnels,
		client.UnsafeDisableDeepCopy), objects.List(ctx, &networks, client.UnsafeDisableDeepCopy)); err != nil {
		p.Log.Error("cannot update the rows of the page", "error", err)
		return
	}
	keys := map[model.Key]bool{}
	note := func(object any) {
		if key, ok := clusterOf(object); ok {
			keys[key] = true
		}
	}
	for i := range clusters.Items {
		note(&clusters.Items[i])
	}
	for i := range tunnels.Items {
		note(&tunnels.Items[i])
	}
	for i := range networks.Items {
		note(&networks.Items[i])
	}
	for key := range keys {
		p.update(ctx, objects, key)
	}
}

// update creates the row of one Cluster. It recovers from panics, because the content of an object must not end a
// server on which all edges depend.
func (p *Page) update(ctx context.Context, objects client.Reader, key model.Key) {
	defer p.survive(key)
	p.making.Lock() // otherwise an older row could replace a newer one
	defer p.making.Unlock()
	row, err := p.row(ctx, objects, key)
	if err != nil {
		p.Log.Error("cannot render a row of the page", "cluster", key.String(), "error", err)
		return
	}
	p.fleet.set(key, row)
}

// row returns nil if there is nothing to show.
func (p *Page) row(ctx context.Context, objects client.Reader, key model.Key) ([]byte, error) {
	in, err := read(ctx, objects, key, client.MatchingFields{clusterIndex: key.Name})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	in.Live = p.live
	p.mu.Unlock()
	r := rowOf(in, p.Now())
	if r == nil {
		return nil, nil
	}
	return json.Marshal(wire(r))
}

// stripCluster keeps only the fields of a Cluster that a row requires: there may be 10,000, with a topology each.
func stripCluster(object any) (any, error) {
	c, ok := object.(*clusterv1.Cluster)
	if !ok {
		return object, nil
	}
	kept := &clusterv1.Cluster{}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = c.Namespace, c.Name, c.UID, c.ResourceVersion
	kept.DeletionTimestamp, kept.CreationTimestamp = c.DeletionTimestamp, c.CreationTimestamp
	kept.Labels, kept.Annotations = pick(c.Labels, v1alpha1.TunnelLabel), pick(c.Annotations, clusterv1.PausedAnnotation)
	kept.Spec.Paused = c.Spec.Paused
	for _, one := range c.Status.Conditions {
		if one.Type == v1alpha1.ClusterConditionTunnelReady && one.Reason == v1alpha1.ReasonNameTaken {
			kept.Status.Conditions = append(kept.Status.Conditions, one)
		}
	}
	return kept, nil
}

// pick keeps one entry; nil: it does not exist.
func pick(from map[string]string, key string) map[string]string {
	value, ok := from[key]
	if !ok {
		return nil
	}
	return map[string]string{key: value}
}

// stripTunnel removes the fields of a Tunnel that no row shows, mainly the records of tokens.
func stripTunnel(object any) (any, error) {
	t, ok := object.(*v1alpha1.Tunnel)
	if !ok {
		return object, nil
	}
	t.ManagedFields, t.OwnerReferences, t.Finalizers, t.Labels = nil, nil, nil, nil
	t.Annotations = pick(t.Annotations, v1alpha1.PreparedAnnotation)
	t.Status.Tokens, t.Status.BootReportTokens = nil, nil
	for i := range t.Status.Edges {
		t.Status.Edges[i].TokenSHA256 = ""
		if a := t.Status.Edges[i].APIServer; a != nil {
			a.CertificateNames = nil
		}
	}
	return t, nil
}

// survive logs a panic and continues.
func (p *Page) survive(key model.Key) {
	if fault := recover(); fault != nil {
		p.Log.Error("page: panic", "cluster", key.String(), "error", fault, "stack", string(debug.Stack()))
	}
}
