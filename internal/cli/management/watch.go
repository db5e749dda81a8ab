package management

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/retry"
)

// syncTime bounds the first list of a watch, and how long a watch may fail.
const syncTime = time.Minute

// again is the wait between two attempts.
var again = retry.Backoff{Min: 250 * time.Millisecond, Max: 5 * time.Second}

// watched reads objects from a cache that watches of Kubernetes keep current, so that a change costs the apiserver one
// event.
type watched struct {
	client.Reader
	changes output.Watcher
}

// Reader returns a reader of objects of some kinds: a cache with watch, otherwise the apiserver.
func (m *Client) Reader(
	ctx context.Context, watch bool, namespace string, kinds ...client.Object,
) (client.Reader, output.Watcher, error) {
	if !watch {
		return m, nil, nil
	}
	w, err := m.watch(ctx, namespace, kinds...)
	if err != nil {
		return nil, nil, err
	}
	return w, w.changes, nil
}

// watch starts to watch objects of some kinds in a namespace, or in all namespaces if it is empty. It returns when all
// objects are in the cache.
func (m *Client) watch(ctx context.Context, namespace string, kinds ...client.Object) (*watched, error) {
	options := cache.Options{
		Scheme:           m.scheme,
		Mapper:           m.RESTMapper(),
		ByObject:         map[client.Object]cache.ByObject{},
		DefaultTransform: cache.TransformStripManagedFields(),
	}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	failed := make(chan error, 1)
	own := *m.HTTP
	own.Transport = noticing{cmp.Or(own.Transport, http.DefaultTransport), failed}
	options.HTTPClient = &own
	options.DefaultWatchErrorHandler = func(ctx context.Context, r *toolscache.Reflector, err error) {
		select {
		case failed <- err:
		default:
		}
	}
	c, err := cache.New(m.Config, options)
	if err != nil {
		return nil, fmt.Errorf("watching the management cluster: %w", err)
	}
	news := make(chan struct{}, 1)
	notify := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	go func() { _ = c.Start(ctx) }()
	syncing, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	if !c.WaitForCacheSync(syncing) { // no kind has an informer yet; a cache can be queried only after it has started
		return nil, fmt.Errorf("watching the management cluster: %w", context.Cause(syncing))
	}
	for _, kind := range kinds {
		if err := follow(syncing, c, kind, notify, failed); err != nil {
			return nil, err
		}
	}
	reachable := func(ctx context.Context) (err error) {
		for i := 0; i < len(kinds) && err == nil; i++ {
			err = m.reachable(ctx, kinds[i], namespace)
		}
		return err
	}
	return &watched{c, watcher(news, failed, reachable)}, nil
}

// noticing reports requests that had no answer: a Reflector repeats them without a word.
type noticing struct {
	http.RoundTripper
	failed chan<- error
}

// RoundTrip implements http.RoundTripper.
func (n noticing) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := n.RoundTripper.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		select {
		case n.failed <- err:
		default:
		}
	}
	return answer, err
}

// watcher returns a Watcher of news. If a watch has failed, which may be the harmless end of one, it asks whether the
// apiserver answers: otherwise the cache keeps what it has, and the view would show it as current for ever.
func watcher(news <-chan struct{}, failed <-chan error, reachable func(context.Context) error) output.Watcher {
	return func(ctx context.Context, changed func()) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-news:
				changed()
			case err := <-failed:
				if reason := reachable(ctx); reason != nil && ctx.Err() == nil {
					return fmt.Errorf("watching the management cluster: %w", errors.Join(err, reason))
				}
			}
		}
	}
}

// reachable lists one object of a kind. It returns nil if that succeeds within a minute, such as after a restart of the
// apiserver, and the reason otherwise. A missing permission is final.
func (m *Client) reachable(ctx context.Context, kind client.Object, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	gvk, err := apiutil.GVKForObject(kind, m.scheme)
	if err != nil {
		return err
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	for attempt := 0; ; attempt++ {
		err := m.List(ctx, &list, client.InNamespace(namespace), client.Limit(1))
		if err == nil || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
			retry.Sleep(ctx, again.Wait(attempt)) != nil {
			return err
		}
	}
}

// follow waits until the objects of one kind are in the cache. It returns the first error of the watch at once.
func follow(ctx context.Context, c cache.Cache, kind client.Object, notify func(), failed <-chan error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-failed:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	informer, err := c.GetInformer(ctx, kind)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	return err
}
