package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// Publisher receives the output of this package.
type Publisher interface {
	// Replace is called once, with all workload clusters: the served and the withheld ones.
	Replace(clusters []model.WorkloadCluster)
	// Publish is called for each workload cluster that may have changed since; nil: it no longer exists.
	Publish(key model.Key, cluster *model.WorkloadCluster)
	// Ended is called before Replace, and when the record of ended tunnels may have changed, with the whole record: the
	// ids, and until when certificates of their edges may be valid.
	Ended(ids map[string]time.Time)
	// SetGateways is called before Replace if the gateways are known by then, and when they may have changed, with all
	// gateways: at least one, in the order of their numbers. It is never called if no StatefulSet is followed.
	SetGateways(gateways []model.Gateway)
	// SetRollout is called before Replace, and whenever the record of rollouts may have changed; nil: there is none.
	SetRollout(record *rollout.Record)
}

// KubeConfig configures a Kube. All fields are required unless their comment states otherwise.
type KubeConfig struct {
	Domain         model.TunnelDomain
	Namespace      string               // of the installation
	GatewaySet     string               // name of the StatefulSet of the gateways; empty: none
	ReplicaAddress model.ReplicaAddress // of each gateway; zero: they have no addresses of their own
	Publisher      Publisher
	Now            func() time.Time // nil: time.Now
	Log            *slog.Logger
	// Beats detects publishing that does not end and stuck informers. Nil: they are not detected.
	Beats *heartbeat.Monitor
}

// Kube watches the objects of a management cluster.
type Kube struct {
	KubeConfig
	objects cache.Cache   // Clusters and Tunnels without a selector; compared with live
	live    client.Reader // reads from the apiserver
	scheme  *runtime.Scheme
	// Zero, except in tests: see informers.Config.
	compareEvery, compareLimit time.Duration
	record, rollouts           cache.Cache // of ended tunnels, of rollouts
	// gatewaySet is the StatefulSet of the gateways; nil: none is followed.
	gatewaySet cache.Cache
	zones      cache.Cache                                 // of the gateways; nil: none is followed
	zonesRead  func() bool                                 // nil: they are not watched
	queue      workqueue.TypedDelayingInterface[model.Key] // keys to process, each at most once
	read       chan struct{}                               // closed when all objects have been read once
	figures    *figures

	// The fields below are used only by Run's goroutine.
	records        *records
	problems       map[model.Key]error  // problems of records that cannot be served
	logged         map[model.Key]string // the last logged message about a workload cluster
	loggedEnded    map[string]string    // logged entries of the record
	recorded       map[string]time.Time // the record of ended tunnels
	living         living
	loggedGateways string            // logged reason why the gateways are not known
	settled        map[string]bool   // see markJoining
	lastZones      map[string]string // by gateway
}

// NewKube returns a source that reads with a client configuration; Run starts it.
func NewKube(rest *rest.Config, config KubeConfig) (*Kube, error) {
	scheme := runtime.NewScheme()
	if err := addTypes(scheme); err != nil {
		return nil, fmt.Errorf("registering types: %w", err)
	}
	figures := newFigures()
	objects, err := cache.New(rest, cache.Options{
		Scheme: scheme,

		DefaultWatchErrorHandler: figures.watchFailed,
		DefaultTransform:         cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			clusterMetadata():  {Transform: stripCluster},
			&v1alpha1.Tunnel{}: {Transform: stripTunnel},

			&v1alpha1.RemoteNetwork{}: {Transform: stripNetwork},
			&corev1.ConfigMap{}:       only(config.Namespace, v1alpha1.InstallationConfigMapName),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch objects: %w", err)
	}
	record, errRecord := configMapCache(rest, scheme, figures, config.Namespace, v1alpha1.EndedTunnelsConfigMapName)
	rollouts, errRollouts := configMapCache(rest, scheme, figures, config.Namespace, v1alpha1.RolloutConfigMapName)
	if err := errors.Join(errRecord, errRollouts); err != nil {
		return nil, err
	}
	live, err := client.New(rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("preparing to compare objects: %w", err)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	k := &Kube{
		KubeConfig: config, objects: objects, live: live, scheme: scheme, record: record, rollouts: rollouts,
		queue: workqueue.NewTypedDelayingQueue[model.Key](),
		read:  make(chan struct{}), figures: figures, living: living{}, records: newRecords(config.Domain),
		logged: map[model.Key]string{}, problems: map[model.Key]error{},
	}
	return k, k.followGateways(rest, scheme)
}

// addTypes registers the types of all objects.
func addTypes(scheme *runtime.Scheme) error {
	return errors.Join(
		appsv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), corev1.AddToScheme(scheme),
		clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
	)
}

// followGateways prepares the watches of the gateways, if they are in a StatefulSet.
func (k *Kube) followGateways(rest *rest.Config, scheme *runtime.Scheme) (err error) {
	if k.GatewaySet != "" {
		followed := only(k.Namespace, k.GatewaySet)
		followed.Transform = stripGatewaySet
		k.gatewaySet, err = cache.New(rest, cache.Options{
			Scheme: scheme, ByObject: map[client.Object]cache.ByObject{&appsv1.StatefulSet{}: followed},
			DefaultWatchErrorHandler: k.figures.watchFailed,
		})
		if err != nil {
			return fmt.Errorf("preparing to watch the StatefulSet of the gateways: %w", err)
		}
		k.zones, err = cache.New(rest, cache.Options{
			Scheme: scheme, DefaultWatchErrorHandler: k.figures.watchFailed, DefaultTransform: stripSlice,
			ByObject: map[client.Object]cache.ByObject{
				&discoveryv1.EndpointSlice{}: {Namespaces: map[string]cache.Config{k.Namespace: {}}},
			},
		})
		if err != nil {
			return fmt.Errorf("preparing to watch EndpointSlices: %w", err)
		}
	}
	return nil
}

// configMapCache watches a single ConfigMap.
func configMapCache(
	rest *rest.Config, scheme *runtime.Scheme, figures *figures, namespace, name string,
) (cache.Cache, error) {
	c, err := cache.New(rest, cache.Options{
		Scheme: scheme, DefaultWatchErrorHandler: figures.watchFailed,
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: only(namespace, name)},
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch the ConfigMap %s: %w", name, err)
	}
	return c, nil
}

// watchConfigMap enqueues a key when the ConfigMap of a cache that configMapCache has returned changes.
func (k *Kube) watchConfigMap(ctx context.Context, c cache.Cache, name string, key model.Key) error {
	if _, err := k.enqueueOn(ctx, c, &corev1.ConfigMap{}, key); err != nil {
		return fmt.Errorf("watching the ConfigMap %s: %w", name, err)
	}
	return nil
}

// enqueueOn enqueues a key when an object of a type changes in a cache. It returns the informer.
func (k *Kube) enqueueOn(
	ctx context.Context, c cache.Cache, object client.Object, key model.Key,
) (cache.Informer, error) {
	enqueue := func() { k.queue.Add(key) }
	informer, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { enqueue() }, UpdateFunc: func(any, any) { enqueue() }, DeleteFunc: func(any) { enqueue() },
		})
	}
	return informer, err
}

// readConfigMap returns the data of the ConfigMap of such a cache; nil: it does not exist, or has none.
func (k *Kube) readConfigMap(ctx context.Context, c cache.Cache, name string) (map[string]string, error) {
	var found corev1.ConfigMap
	at := client.ObjectKey{Namespace: k.Namespace, Name: name}
	if err := c.Get(ctx, at, &found); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", at, err)
	}
	return found.Data, nil
}

// only returns a selector for a single object, because the xds-server may read no other. So each ConfigMap needs a
// cache of its own.
func only(namespace, name string) cache.ByObject {
	return cache.ByObject{
		Namespaces: map[string]cache.Config{namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}},
	}
}

// Run reads all objects, publishes them, and publishes changes until ctx ends. It returns an error if it can't start;
// the client library retries and logs later errors of the management cluster.
func (k *Kube) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := k.watch(ctx); err != nil {
		return err
	}
	compared, err := k.compare(ctx)
	if err != nil {
		return err
	}
	caches := k.caches()
	if k.zones != nil {
		caches = append(caches, k.zones)
	}
	ended := make(chan error, len(caches))
	for _, c := range caches {
		go func() { ended <- c.Start(ctx) }()
	}
	err = k.serve(ctx)
	cancel()
	<-compared
	for range caches {
		if watching := <-ended; watching != nil {
			err = errors.Join(err, fmt.Errorf("watching objects: %w", watching))
		}
	}
	return err
}

// caches returns the caches that must be read before anything is published.
func (k *Kube) caches() []cache.Cache {
	all := []cache.Cache{k.objects, k.record, k.rollouts}
	if k.gatewaySet != nil {
		all = append(all, k.gatewaySet)
	}
	return all
}

// serve runs until ctx ends. It returns an error if the first read fails.
func (k *Kube) serve(ctx context.Context) error {
	for _, c := range k.caches() {
		if !c.WaitForCacheSync(ctx) {
			return nil
		}
	}
	close(k.read)
	// Published first, so that a denied edge is never admitted.
	if err := k.publishEnded(ctx); err != nil {
		return err
	}
	if err := errors.Join(k.publishGateways(ctx), k.publishRollout(ctx)); err != nil {
		return err
	}
	if err := k.awaitRecords(ctx); err != nil {
		return err
	}
	if err := k.replace(ctx); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, k.queue.ShutDown)()
	k.work(ctx)
	return nil
}

// watch prepares the watches, and what is enqueued for their events.
func (k *Kube) watch(ctx context.Context) error {
	if err := k.objects.IndexField(ctx, &v1alpha1.Tunnel{}, tokenIndex, tokenHashes); err != nil {
		return fmt.Errorf("indexing tokens of Tunnels: %w", err)
	}
	if err := k.objects.IndexField(ctx, &v1alpha1.Tunnel{}, reportTokenIndex, reportTokenHashes); err != nil {
		return fmt.Errorf("indexing tokens for boot reports: %w", err)
	}
	if err := k.objects.IndexField(ctx, &v1alpha1.Tunnel{}, heldIDIndex, heldIDs); err != nil {
		return fmt.Errorf("indexing ids of Tunnels: %w", err)
	}
	if err := k.objects.IndexField(ctx, &v1alpha1.Tunnel{}, servedClusterIndex, servedClusters); err != nil {
		return fmt.Errorf("indexing Tunnels of networks: %w", err)
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    k.enqueue,
		UpdateFunc: func(_, object any) { k.enqueue(object) },
		DeleteFunc: k.enqueue,
	}
	for _, object := range []client.Object{clusterMetadata(), &v1alpha1.Tunnel{}, &v1alpha1.RemoteNetwork{}} {
		handler := handler
		if _, ok := object.(*v1alpha1.RemoteNetwork); ok {
			handler.AddFunc, handler.DeleteFunc = k.enqueueNetwork, k.enqueueNetwork
			handler.UpdateFunc = func(_, object any) { k.enqueueNetwork(object) }
		}
		informer, err := k.objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	if _, err := k.objects.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("watching the ConfigMap %s: %w", v1alpha1.InstallationConfigMapName, err)
	}
	return errors.Join(
		k.watchConfigMap(ctx, k.record, v1alpha1.EndedTunnelsConfigMapName, recordKey), k.watchGateways(ctx),
		k.watchConfigMap(ctx, k.rollouts, v1alpha1.RolloutConfigMapName, rolloutKey),
	)
}

func (k *Kube) enqueue(object any) {
	// A deleted object may be a DeletedFinalStateUnknown, which only has the key.
	key, err := toolscache.DeletionHandlingObjectToName(object)
	if err == nil {
		k.queue.Add(model.Key{Namespace: key.Namespace, Name: key.Name})
	}
}

// enqueueNetwork enqueues the Tunnel of a RemoteNetwork.
func (k *Kube) enqueueNetwork(object any) {
	if key, err := toolscache.DeletionHandlingObjectToName(object); err == nil {
		k.queue.Add(model.Key{Namespace: key.Namespace, Name: decision.NetworkTunnel(key.Name)})
	}
}

// replace publishes everything.
func (k *Kube) replace(ctx context.Context) error {
	var tunnels v1alpha1.TunnelList
	// Only the names are read. A copy of all Tunnels of a large fleet is 1 GB.
	if err := k.objects.List(ctx, &tunnels, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Tunnels: %w", err)
	}
	keys := make([]model.Key, 0, len(tunnels.Items))
	for _, t := range tunnels.Items {
		key := model.Key{Namespace: t.Namespace, Name: t.Name}
		there, _, _, err := k.take(ctx, key)
		if err != nil {
			return err
		}
		if there {
			keys = append(keys, key)
		}
	}
	all, served := make([]model.WorkloadCluster, 0, len(keys)), 0
	for _, key := range keys { // only now all records are known
		cluster := k.served(key)
		all = append(all, cluster)
		if !cluster.Withheld {
			served++
		}
	}
	if len(k.recorded) > 0 { // before edges are let in: an id on record may live again
		if err := k.publishEnded(ctx); err != nil {
			return err
		}
	}
	k.Publisher.Replace(all)
	k.Log.Info("all objects read", "tunnels", len(tunnels.Items), "served", served)
	return nil
}

// work processes the queue until ctx ends.
func (k *Kube) work(ctx context.Context) {
	for {
		key, end := k.queue.Get()
		if end {
			return
		}
		done := k.Beats.Begin("publishing changes of the management cluster", heartbeat.Limit)
		if err := k.process(ctx, key); err != nil && ctx.Err() == nil {
			k.Log.Error("cannot apply change", "error", err)
		}
		done()
		k.queue.Done(key)
	}
}

// process processes one key of the queue.
func (k *Kube) process(ctx context.Context, key model.Key) error {
	switch key {
	case recordKey:
		return k.publishEnded(ctx)
	case gatewaysKey:
		return k.publishGateways(ctx)
	case rolloutKey:
		return k.publishRollout(ctx)
	}
	dependents, err := k.dependents(ctx, key)
	for _, each := range append([]model.Key{key}, dependents...) {
		if problem := k.publish(ctx, each); problem != nil {
			err = errors.Join(err, fmt.Errorf("workload cluster %s: %w", each, problem))
		}
	}
	return err
}
