package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/promise"
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
		{"with no edge and no bootstrap token left, new Pods enrol with the tokens of their ServiceAccount", proveTokens},
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

// proveTokens replaces all edges after it has removed the bootstrap token from their Secret. Kubelets write the tokens
// that are left.
func proveTokens(t *testing.T, w *World) {
	ask(t, w.management, "--namespace="+shops, "patch", "tunnel/paris", "--type=merge",
		`--patch={"spec": {"edgeServiceAccount": {"namespace": "fairlead-edge", "name": "fairlead-edge"}}}`)
	ask(t, w.management, "--namespace="+shops, "wait", "tunnel/paris", "--timeout=60s",
		"--for=jsonpath={.status.serviceAccountIssuer.keys}")
	w.removeToken(t)
	const edges = "deployment/fairlead-edge"
	ask(t, w.workload, "--namespace=fairlead-edge", "scale", edges, "--replicas=0")
	ask(t, w.workload, "--namespace=fairlead-edge", "wait", "pods", "--all", "--for=delete", "--timeout=90s")
	if err := w.reach(t.Context()); err == nil {
		t.Fatal("the workload cluster is reachable without an edge")
	}
	began := time.Now()
	ask(t, w.workload, "--namespace=fairlead-edge", "scale", edges, "--replicas=2")
	eventually(t, w.reach)
	measured("pods_enrolled_s", time.Since(began).Seconds())
	ask(t, w.workload, "--namespace=fairlead-edge", "rollout", "status", edges, "--timeout=60s")
}

func proveContainerd(t *testing.T, w *World) {
	stop := promise.Watch(t, w.reach)
	for _, c := range []*cluster.Cluster{w.management, w.workload} {
		for _, n := range c.Nodes() {
			must(t, n.RestartContainerd(t.Context(), 2*time.Second))
		}
	}
	seen := stop()
	measured("containerd_sent", float64(seen.Sent))
	measured("containerd_lost", float64(seen.Lost))
	if seen.Sent < 10 || seen.Lost > 0 {
		t.Errorf("%d of %d requests failed", seen.Lost, seen.Sent)
	}
}

func proveDrains(t *testing.T, w *World) {
	stop := promise.Watch(t, w.reach)
	for _, n := range w.management.Nodes() {
		ask(t, w.management, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
		ask(t, w.management, "uncordon", n.Name)
		waitRollouts(t, w)
	}
	eventually(t, w.reach)
	seen := stop()
	measured("drain_sent", float64(seen.Sent))
	measured("drain_lost", float64(seen.Lost))
	measured("drain_outage_s", seen.Outage.Seconds())
	if seen.Sent < 10 || seen.Outage > 30*time.Second {
		t.Errorf("%d of %d requests failed, and for %s all of them", seen.Lost, seen.Sent, seen.Outage)
	}
}
