package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
)

func TestInstallation(t *testing.T) {
	w := newWorld(t)
	w.installClusterAPI(t)
	for _, check := range []struct {
		promise string
		prove   func(*testing.T, *World)
	}{
		{"the manifests start an installation whose Pods are ready", proveReady},
		{"only the agent of a gateway has a capability, and Envoy beside it has none", proveCapabilities},
		{"edges in Pods of another cluster make its apiserver reachable", proveEdges},
		{"the management cluster cannot dial the workload cluster", proveUndialable},
		{"a restart of containerd on every node loses no request", proveContainerd},
		{"the tunnel is back after each node of the management cluster was drained", proveDrains},
	} {
		that(t, check.promise, func(t *testing.T) { check.prove(t, w) })
	}
}

// ours are the workloads of the manifests.
var ours = []string{"deployment/controller", "deployment/xds-server", "statefulset/gateway"}

func proveReady(t *testing.T, w *World) {
	began := time.Now()
	w.apply(t, w.management, "deploy/kubernetes")
	waitRollouts(t, w)
	measured("install_s", time.Since(began).Seconds())
	w.nameGateway(t)
	for _, pod := range strings.Fields(ask(t, w.management, "--namespace=fairlead-system", "get", "pods",
		"--output=jsonpath={range .items[*]}{.metadata.name}={.status.containerStatuses[0].restartCount} {end}")) {
		if !strings.HasSuffix(pod, "=0") {
			t.Errorf("a container was restarted: %s", pod)
		}
	}
}

func waitRollouts(t *testing.T, w *World) {
	t.Helper()
	for _, name := range ours {
		ask(t, w.management, "--namespace=fairlead-system", "rollout", "status", name, "--timeout=150s")
	}
}

func proveCapabilities(t *testing.T, w *World) {
	const netAdmin, none = "0000000000001000", "0000000000000000"
	agents, envoys := 0, 0
	for _, n := range w.management.Nodes() {
		pids, err := n.Processes()
		must(t, err)
		for _, pid := range pids {
			name, effective := statusOf(pid, "Name"), statusOf(pid, "CapEff")
			switch {
			case name == "gateway-agent" && effective == netAdmin:
				agents++
			case strings.HasPrefix(name, "envoy") && effective == none:
				envoys++
			case name != "" && effective != none && effective != "":
				t.Errorf("process %s of %s has the capabilities %s", name, n.Name, effective)
			}
		}
	}
	if agents != 2 || envoys != 2 {
		t.Errorf("%d agents have the capability and %d Envoys have none, want 2 and 2", agents, envoys)
	}
}

// statusOf returns a field of the status of a process, or nothing if it has ended.
func statusOf(pid int, field string) string {
	data, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func proveEdges(t *testing.T, w *World) {
	w.createCluster(t)
	began := time.Now()
	w.startEdges(t)
	eventually(t, w.reach)
	measured("first_tunnel_s", time.Since(began).Seconds())
	ask(t, w.workload, "--namespace=fairlead-edge", "rollout", "status", "deployment/fairlead-edge", "--timeout=60s")
	ask(t, w.management, "--namespace="+shops, "wait", "tunnel/paris", "--for=condition=Ready", "--timeout=60s")
	ask(t, w.management, "--namespace="+shops, "wait", "cluster/paris", "--for=condition=RemoteConnectionProbe",
		"--timeout=120s")
}

func proveUndialable(t *testing.T, w *World) {
	// The only address of the workload cluster in a network of the management cluster is that of its router, which drops
	// packets: it does not even reject a connection.
	err := w.management.FromRouter(t.Context(), "172.31.0.1:6443")
	if err == nil || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("the management cluster dials the workload cluster: %v", err)
	}
}

// watch sends requests through the tunnel, one after the other over new connections, until stop is called. stop returns
// how many there were, how many failed, and the longest time without a success.
func watch(t *testing.T, w *World) (stop func() (sent, lost int, outage time.Duration)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var sent, lost int
	var outage time.Duration
	go func() {
		defer close(done)
		last := time.Now()
		for ctx.Err() == nil {
			err := w.reach(ctx)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				sent, lost = sent+1, lost+1
			default:
				sent, outage, last = sent+1, max(outage, time.Since(last)), time.Now()
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return func() (int, int, time.Duration) {
		cancel()
		<-done
		return sent, lost, outage
	}
}

func proveContainerd(t *testing.T, w *World) {
	stop := watch(t, w)
	for _, c := range []*cluster.Cluster{w.management, w.workload} {
		for _, n := range c.Nodes() {
			must(t, n.RestartContainerd(t.Context(), 2*time.Second))
		}
	}
	sent, lost, _ := stop()
	measured("containerd_lost", float64(lost))
	if sent < 10 || lost > 0 {
		t.Errorf("%d of %d requests failed", lost, sent)
	}
}

func proveDrains(t *testing.T, w *World) {
	stop := watch(t, w)
	for _, n := range w.management.Nodes() {
		ask(t, w.management, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
		ask(t, w.management, "uncordon", n.Name)
		waitRollouts(t, w)
	}
	eventually(t, w.reach)
	sent, lost, outage := stop()
	measured("drain_sent", float64(sent))
	measured("drain_lost", float64(lost))
	measured("drain_outage_s", outage.Seconds())
	if sent < 10 || outage > 30*time.Second {
		t.Errorf("%d of %d requests failed, and for %s all of them", lost, sent, outage)
	}
}
