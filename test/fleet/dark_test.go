package fleet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// unreachableClusters and darkWorkers are a scaled-down version of 2,000 Clusters and 100 workers.
	unreachableClusters, workerCount = 200, 10
	liveClusters                     = 3
	// observeTime is how long the workers are observed: longer than one attempt for each unreachable workload cluster
	// takes, because Cluster API makes one in 30 s.
	observeTime = 40 * time.Second
	// attemptPatience bounds an attempt to reach an unreachable workload cluster on a busy machine. Without Fairlead's
	// answer for such clusters an attempt takes 5 s by SNI.
	attemptPatience = 3 * time.Second
	// busyLimit is the fraction of all workers that unreachable workload clusters may keep busy.
	busyLimit = 0.25

	probeTimeout    = 5 * time.Second // of Cluster API's probe
	diagnosticsPort = "127.0.0.1:9300"
)

// unreachables is an installation with workload clusters that have no edge.
type unreachables struct {
	*world.World
	live, unreachable []*lab.Cluster
	member            *world.Member // a member whose edge is stopped and started again
	edge              *lab.Agent
}

// TestUnreachableClustersDoNotAffectOthers proves that unreachable workload clusters cost Cluster API almost nothing.
func TestUnreachableClustersDoNotAffectOthers(t *testing.T) {
	inTurn(t)
	options := lab.Options{Lean: true, LogLevel: "info"}
	for i := range liveClusters {
		options.ServingNames = append(options.ServingNames, world.Hostname(fmt.Sprint("live-", i)))
	}
	w := &unreachables{World: newWorld(t, options)}
	w.member = w.Member(t, "sleeper", nil)
	w.edge = w.Edge(t, lab.EdgeSpec{Name: "edge-sleeper"}, w.member)
	w.populate(t)
	must(t, w.member.Works(t.Context()))
	// Right after a tunnel is lost the gateway makes clients wait, because the edge may only be reconnecting.
	world.StopEdge(t, w.edge)
	that(
		t,
		"requests to an unreachable cluster fail at once, by SNI and CONNECT, with an error that client-go does not "+
			"retry",
		w.refused,
	)
	that(t, "an edge reconnects while only the gateway runs", w.comesBack)
	that(
		t, "unreachable clusters do not occupy ClusterCache workers, and reachable ones stay connected",
		w.connected,
	)
	w.Logs(t, "edge-sleeper")
}

// populate creates all Clusters, and one edge for the live ones.
func (w *unreachables) populate(t *testing.T) {
	t.Helper()
	absent := w.StandIn(t, "nobody", w.Network.Workload, w.Network.WorkloadAddress())
	var bootstraps [][]byte
	for i := range liveClusters {
		c, err := w.CreateCluster(
			t.Context(),
			lab.ClusterSpec{
				Name:      fmt.Sprint("live-", i),
				Namespace: world.Namespace,
				APIServer: w.SNI,
				Mode:      v1alpha1.KubeconfigModeSNI,
			},
		)
		must(t, err)
		must(t, c.SetProvisioned(t.Context()))
		bootstrap, err := c.Bootstrap(t.Context())
		must(t, err)
		w.live, bootstraps = append(w.live, c), append(bootstraps, bootstrap)
	}
	_, err := w.RunEdge(lab.EdgeSpec{Name: "edge-live", Bootstraps: bootstraps})
	must(t, err)
	w.unreachable = make([]*lab.Cluster, unreachableClusters)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i := range w.unreachable {
		group.Go(func() (err error) {
			spec := lab.ClusterSpec{
				Name:      fmt.Sprint("dark-", i),
				Namespace: world.Namespace,
				APIServer: absent.APIServer,
				Mode:      v1alpha1.KubeconfigModeSNI,
			}
			if i%2 == 0 {
				spec.Mode = v1alpha1.KubeconfigModeConnect
			}
			if w.unreachable[i], err = w.CreateCluster(ctx, spec); err != nil {
				return err
			}
			return w.unreachable[i].SetProvisioned(ctx)
		})
	}
	must(t, group.Wait())
	for _, c := range append(w.unreachable, w.live...) {
		_, err := c.WaitKubeconfig(t.Context())
		must(t, err)
	}
	for _, c := range w.live {
		eventually(t, c.Reach)
	}
}

// refused measures the time of an attempt of Cluster API, before and after the gateway has determined that a workload
// cluster is unreachable.
func (w *unreachables) refused(t *testing.T) {
	lost := w.probe(t, w.sleeper(t))
	measured("dark_lost_moments_ago_s", lost.Seconds())
	for mode, c := range map[string]*lab.Cluster{"connect": w.unreachable[0], "sni": w.unreachable[1]} {
		kubeconfig, err := c.Kubeconfig(t.Context())
		must(t, err)
		longest := time.Duration(0)
		// the gateway may have run for less than a minute
		must(t, proc.Wait(t.Context(), 3*promise.Patience, func(context.Context) error {
			for range 5 { // a client that is held may be released early by chance
				if took := w.probe(t, kubeconfig); took > attemptPatience {
					return fmt.Errorf("by %s an attempt took %v", mode, took)
				}
			}
			return nil
		}))
		for range 20 {
			longest = max(longest, w.probe(t, kubeconfig))
		}
		measured("dark_attempt_"+mode+"_ms", float64(longest.Milliseconds()))
		if longest > attemptPatience {
			t.Errorf("by %s an attempt took %v", mode, longest)
		}
	}
}

func (w *unreachables) sleeper(t *testing.T) []byte {
	t.Helper()
	kubeconfig, err := w.member.WaitKubeconfig(t.Context())
	must(t, err)
	return kubeconfig
}

// probe measures the first request of a connect of ClusterCache, which must fail: createHTTPClientAndMapper in Cluster
// API's controllers/clustercache.
func (w *unreachables) probe(t *testing.T, kubeconfig []byte) time.Duration {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(t, err)
	config.Dial, config.Timeout, config.QPS, config.Burst = w.Network.Management.DialContext, 10*time.Second, 20, 30
	client, err := rest.HTTPClientFor(config)
	must(t, err)
	codec := runtime.NoopEncoder{Decoder: scheme.Codecs.UniversalDecoder()}
	config.NegotiatedSerializer = serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: codec})
	restClient, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	must(t, err)
	began := time.Now()
	if _, err := restClient.Get().AbsPath("/").Timeout(probeTimeout).DoRaw(t.Context()); err == nil {
		t.Fatal("the address accepted a connection")
	}
	return time.Since(began)
}

// comesBack starts the edge again while the control plane is frozen.
func (w *unreachables) comesBack(t *testing.T) {
	kubeconfig := w.sleeper(t)
	eventually(t, func(context.Context) error { // the tunnel may have been lost less than ten seconds ago
		if took := w.probe(t, kubeconfig); took > attemptPatience {
			return fmt.Errorf("it is not dark: an attempt took %v", took)
		}
		return nil
	})
	for _, s := range append(w.XDSServers, w.Controllers...) {
		must(t, s.Process().Freeze())
		defer func() { must(t, s.Process().Thaw()) }()
	}
	w.edge.Resume()
	began := time.Now()
	must(t, proc.Wait(t.Context(), time.Minute, w.member.Works))
	measured("dark_back_s", time.Since(began).Seconds())
}

// connected runs Cluster API's real core manager.
func (w *unreachables) connected(t *testing.T) {
	manager, err := w.StartManager(
		t.Context(), "capi-dark", world.Namespace, fmt.Sprint("--clustercache-concurrency=", workerCount),
		"--diagnostics-address="+diagnosticsPort, "--insecure-diagnostics",
	)
	must(t, err)
	defer manager.Kill()
	for _, c := range w.live {
		must(t, proc.Wait(t.Context(), 2*time.Minute, c.RemoteConnectionProbe))
	}
	busy, samples, most := 0, 0, 0
	lost := 0
	for began := time.Now(); time.Since(began) < observeTime; {
		n, err := w.busy(t.Context())
		must(t, err)
		busy, samples, most = busy+n, samples+1, max(most, n)
		if samples%10 == 0 {
			for _, c := range w.live {
				if err := c.RemoteConnectionProbe(t.Context()); err != nil {
					t.Errorf("%s: %v", c, err)
					lost++
				}
			}
		}
		_ = proc.Wait(t.Context(), time.Second/4, func(context.Context) error { return fmt.Errorf("it is not time yet") })
	}
	part := float64(busy) / float64(samples) / workerCount
	t.Logf(
		"%d dark and %d live workload clusters, %d workers: %.2f busy on average of %d samples, at most %d",
		unreachableClusters, liveClusters, workerCount, part*workerCount, samples, most,
	)
	measured("dark_2000_busy_of_100_workers", 100*part)
	measured("dark_live_lost", float64(lost))
	if part > busyLimit {
		t.Errorf("dark workload clusters keep %.0f%% of the workers busy", 100*part)
	}
}

// busy returns how many workers of ClusterCache are working at this moment.
func (w *unreachables) busy(ctx context.Context) (n int, err error) {
	client := &http.Client{
		Timeout:   traffic.RequestTimeout,
		Transport: &http.Transport{DialContext: w.Network.Management.DialContext, DisableKeepAlives: true},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+diagnosticsPort+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(io.LimitReader(response.Body, 16<<20)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), `controller_runtime_active_workers{controller="clustercache"} `); ok {
			_, err := fmt.Sscan(value, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("the manager doesn't say how many workers are busy")
}
