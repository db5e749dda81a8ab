package informers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/internal/kubetest"
)

const (
	short = 4 * time.Second // short is a limit; a test makes several comparisons within it
	// long is a limit that leaves an informer time to reconnect after an outage of 4 s.
	long = 10 * time.Second
)

var (
	server  = kubetest.Server{CRDs: true}
	objects = []client.Object{&clusterv1.Cluster{}}
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	ReadByList()
	os.Exit(server.Run(m))
}

// world is a cache and its Check with a real kube-apiserver. A test can cut its connections and hold up its watches.
type world struct {
	client.Client // an administrator's, with its own connections
	namespace     string
	cache         cache.Cache
	beats         *heartbeat.Monitor
	check         *Check
	streamed      atomic.Bool // an informer has asked for a streaming list

	mu    sync.Mutex
	held  chan struct{} // closed when watches continue; nil: they are not held up
	down  bool
	conns []net.Conn
}

func newWorld(t *testing.T, limit time.Duration) *world {
	t.Helper()
	config := server.Config(t)
	config.QPS = -1
	admin, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Client: admin, namespace: kubetest.NewNamespace(t, admin), beats: heartbeat.New()}
	own := rest.CopyConfig(config)
	own.Dial = w.dial
	own.Wrap(func(inner http.RoundTripper) http.RoundTripper { return holding{w, inner} })
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if w.cache, err = cache.New(own, cache.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	live, err := client.New(own, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w.check, err = New(t.Context(), Config{
		Cache: w.cache, Live: live, Scheme: scheme, Objects: objects, Beats: w.beats, Log: slog.New(slog.DiscardHandler),
		Interval: short / 20, Limit: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.DeleteAllOf(context.Background(), &clusterv1.Cluster{}, client.InNamespace(w.namespace)); err != nil {
			t.Error(err)
		}
	})
	return w
}

// run runs the cache and the Check until the end of the test.
func (w *world) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { w.check.Run(ctx) })
	group.Go(func() {
		if err := w.cache.Start(ctx); err != nil {
			t.Errorf("running the cache: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); w.release(); group.Wait() })
	if !w.cache.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache did not sync")
	}
}

func (w *world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.down {
		return nil, errors.Join(syscall.ECONNREFUSED, conn.Close())
	}
	w.conns = append(w.conns, conn)
	return conn, err
}

// cut closes all connections, and rejects new ones until restore is called.
func (w *world) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for _, conn := range w.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
	w.conns = nil
}

func (w *world) restore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// hold blocks the readers of all watches. Their connections stay open, and other requests are answered.
func (w *world) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = make(chan struct{})
}

// release ends the watches that are held up.
func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}

type holding struct {
	world *world
	inner http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (h holding) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	if query.Has("sendInitialEvents") {
		h.world.streamed.Store(true)
	}
	response, err := h.inner.RoundTrip(request)
	if err == nil && query.Get("watch") != "" {
		response.Body = heldBody{response.Body, h.world}
	}
	return response, err
}

type heldBody struct {
	io.ReadCloser
	world *world
}

// Read implements io.Reader.
func (b heldBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	b.world.mu.Lock()
	held := b.world.held
	b.world.mu.Unlock()
	if held != nil {
		<-held
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (w *world) create(t *testing.T, name string) *clusterv1.Cluster {
	t.Helper()
	cluster := kubetest.Cluster(w.namespace, name)
	if err := w.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	w.awaitVersion(t, cluster)
	return cluster
}

func (w *world) change(t *testing.T, cluster *clusterv1.Cluster) {
	t.Helper()
	cluster.Spec.ControlPlaneEndpoint.Port++
	if err := w.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
}

func (w *world) awaitVersion(t *testing.T, cluster *clusterv1.Cluster) {
	t.Helper()
	kubetest.Eventually(t, "the cache having "+cluster.Name, func() error {
		var got clusterv1.Cluster
		if err := w.cache.Get(t.Context(), client.ObjectKeyFromObject(cluster), &got); err != nil {
			return err
		}
		if got.ResourceVersion != cluster.ResourceVersion {
			return fmt.Errorf("version %s", got.ResourceVersion)
		}
		return nil
	})
}

// wellFor fails the test if the liveness probe fails within d.
func (w *world) wellFor(t *testing.T, d time.Duration, when string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := w.beats.Stuck(time.Now()); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
}
