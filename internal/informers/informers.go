// Package informers finds informers that make no progress although the apiserver answers. The client library retries a
// list or a watch that fails, so a failure is no reason to restart. An informer that hangs returns no error. So this
// package compares the objects in its cache with the objects of the apiserver, page by page. It does not compare the
// resource versions of whole lists: they differ between apiservers, and between kinds that change and kinds that do
// not.
package informers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/fairlead/fairlead/internal/heartbeat"
)

const (
	interval  = time.Minute      // between two pages, with jitter
	limit     = 5 * time.Minute  // how long a cache may miss a change
	callLimit = 10 * time.Second // of one request
	pageSize  = 500
)

// Config configures a Check. Fields are required unless their comments allow a zero value.
type Config struct {
	Cache  cache.Cache
	Live   client.Reader   // reads from the apiserver without a cache
	Scheme *runtime.Scheme // has the types of Objects
	// Objects are empty ones of the kinds to compare, each of the type that Cache is read with: a kind has another
	// informer as PartialObjectMetadata. The kinds are namespaced, and Cache watches all of their objects: without a
	// selector and in all namespaces.
	Objects         []client.Object
	Beats           *heartbeat.Monitor // receives the informer that is stuck; may be nil
	Log             *slog.Logger
	Interval, Limit time.Duration // default: a minute between two pages, and 5 minutes without progress
}

// Check compares caches with the apiserver. Run may be called once.
type Check struct {
	Config
	kinds []*kind
	size  int64 // of a page
}

// kind is one kind and the position in its list. Only Run uses it.
type kind struct {
	schema.GroupVersionKind
	store      toolscache.Store
	comparison *comparison
	token      string // of the next page
	after      string // the last key of the previous page
	logged     bool   // the stuck informer has been logged
}

// New returns a Check of the configured kinds. It creates the informers that the cache does not have yet.
func New(ctx context.Context, config Config) (*Check, error) {
	c := &Check{Config: config, size: pageSize}
	if c.Interval == 0 {
		c.Interval = interval
	}
	if c.Limit == 0 {
		c.Limit = limit
	}
	for _, object := range config.Objects {
		gvk, err := apiutil.GVKForObject(object, c.Scheme)
		if err != nil {
			return nil, fmt.Errorf("finding the kind of a %T: %w", object, err)
		}
		informer, err := c.Cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("getting the informer of %s: %w", gvk.Kind, err)
		}
		shared, ok := informer.(toolscache.SharedIndexInformer)
		if !ok {
			return nil, fmt.Errorf("cannot read cache of the informer of %s: it is a %T", gvk.Kind, informer)
		}
		compared := newComparison(gvk.Kind, c.Limit)
		c.kinds = append(c.kinds, &kind{GroupVersionKind: gvk, store: shared.GetStore(), comparison: compared})
	}
	return c, nil
}

// Run compares until ctx ends, and reports stuck informers to Beats.
func (c *Check) Run(ctx context.Context) {
	for {
		wait := time.NewTimer(c.Interval*3/4 + rand.N(c.Interval/2))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		for _, k := range c.kinds {
			if err := c.compare(ctx, k); err != nil && ctx.Err() == nil {
				k.comparison.fail(time.Now())
				c.Log.Debug("cannot compare cache with the apiserver", "kind", k.Kind, "error", err)
			}
			c.report(k)
		}
	}
}

func (c *Check) report(k *kind) {
	err := k.comparison.stuck()
	c.Beats.Report("informer of "+k.Kind, err)
	if err != nil && !k.logged {
		c.Log.Error("informer is stuck", "kind", k.Kind, "error", err)
	}
	k.logged = err != nil
}

// compare reads one page, and inspects the objects that are due.
func (c *Check) compare(ctx context.Context, k *kind) error {
	k.comparison.begin(time.Now())
	cached, err := c.versions(k)
	if err != nil {
		return err
	}
	p, err := c.page(ctx, k)
	if err != nil {
		return err
	}
	k.comparison.observe(p, cached)
	for _, key := range k.comparison.due(time.Now()) {
		s := inspection{read: time.Now()}
		if s.cached, err = c.version(k, key); err != nil {
			return err
		}
		if s.live, err = c.get(ctx, k, key); err != nil {
			return err
		}
		s.answered = time.Now()
		k.comparison.inspect(key, s)
	}
	return nil
}

// page reads the next page.
func (c *Check) page(ctx context.Context, k *kind) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
	err := c.Live.List(ctx, &list, client.Limit(c.size), client.Continue(k.token))
	if k.expired(err) {
		err = c.Live.List(ctx, &list, client.Limit(c.size), client.Continue(k.token))
	}
	if err != nil {
		return page{}, err
	}
	p := page{after: k.after, versions: make(map[string]string, len(list.Items))}
	for i := range list.Items {
		o := &list.Items[i]
		p.last = o.Namespace + "/" + o.Name // an apiserver lists in the order of these keys
		p.versions[p.last] = o.ResourceVersion
	}
	k.token, k.after = list.Continue, p.last
	if k.token == "" {
		k.after, p.last = "", ""
	}
	return p, nil
}

// expired reports whether the apiserver has rejected the token as expired, and sets the token to continue with. A list
// that takes longer than some minutes expires. The answer then has a token for the rest of the list in its current
// state. Without such a token the list starts again.
func (k *kind) expired(err error) bool {
	var status apierrors.APIStatus
	if k.token == "" || !errors.As(err, &status) || !apierrors.IsResourceExpired(err) && !apierrors.IsBadRequest(err) {
		return false
	}
	if k.token = status.Status().Continue; k.token == "" {
		k.after = ""
	}
	return true
}

// get reads the version of one object from the apiserver. It returns an empty string if there is no object.
func (c *Check) get(ctx context.Context, k *kind, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	name, err := toolscache.ParseObjectName(key)
	if err != nil {
		return "", err
	}
	var o metav1.PartialObjectMetadata
	o.SetGroupVersionKind(k.GroupVersionKind)
	err = c.Live.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, &o)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return o.ResourceVersion, err
}

// versions reads all versions in the cache.
func (c *Check) versions(k *kind) (map[string]string, error) {
	defer c.Beats.Begin("reading the cache of "+k.Kind, heartbeat.Limit)()
	all := k.store.List()
	versions := make(map[string]string, len(all))
	for _, object := range all {
		o, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		versions[o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
	}
	return versions, nil
}

// version reads one version from the cache. It returns an empty string if there is no object.
func (c *Check) version(k *kind, key string) (string, error) {
	defer c.Beats.Begin("reading the cache of "+k.Kind, heartbeat.Limit)()
	object, exists, err := k.store.GetByKey(key)
	if err != nil || !exists {
		return "", err
	}
	o, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	return o.GetResourceVersion(), nil
}
