package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/lab/cluster"
)

// ours are the workloads of the installation.
var ours = []string{"deployment/controller", "deployment/xds-server", "statefulset/gateway"}

func waitRollouts(t *testing.T, w *World) {
	t.Helper()
	for _, name := range ours {
		ask(t, w.management, "--namespace="+system, "rollout", "status", name, "--timeout=280s")
	}
}

func proveHelmTest(t *testing.T, w *World) {
	waitRollouts(t, w)
	w.run(t, w.management, "helm test fairlead --namespace "+system)
	generations := func() string {
		return ask(t, w.management, "--namespace="+system, "get",
			"deployments,statefulsets,services,poddisruptionbudgets,networkpolicies,pods",
			"--output=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation}, {end}")
	}
	before := generations()
	w.upgrade(t, "")
	if after := generations(); after != before {
		t.Errorf("a second install changes\n%s\nto\n%s", before, after)
	}
	for _, pod := range strings.Fields(ask(t, w.management, "--namespace="+system, "get", "pods",
		"--output=jsonpath={range .items[*]}{.metadata.name}={.status.containerStatuses[0].restartCount} {end}")) {
		if !strings.HasSuffix(pod, "=0") {
			t.Errorf("a container was restarted: %s", pod)
		}
	}
}

// proveImages compares the images of all nodes with testdata/images.txt.
func proveImages(t *testing.T, w *World) {
	data, err := os.ReadFile("testdata/images.txt")
	must(t, err)
	listed := map[string]bool{}
	for line := range strings.Lines(strings.ReplaceAll(string(data), "VERSION", w.images.version)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			listed[line] = false
		}
	}
	for _, c := range []*cluster.Cluster{w.management, w.workload} {
		for _, n := range c.Nodes() {
			out, err := n.Run(t.Context(), "sh", "-c", `"$0" --namespace=k8s.io images list --quiet 2>/dev/null`,
				c.Parts.RealPath("ctr"))
			must(t, err)
			for name := range strings.FieldsSeq(string(out)) {
				if strings.HasPrefix(name, "sha256:") || strings.Contains(name, "@sha256:") {
					continue // the same image by its digest
				}
				if _, known := listed[name]; !known {
					t.Errorf("%s has the image %s", n.Name, name)
				}
				listed[name] = true
			}
		}
	}
	for name, used := range listed {
		if !used {
			t.Errorf("no node has pulled %s", name)
		}
	}
}

// provePodSecurity labels the namespace with the level restricted, without effect, and reads the warnings: they name
// each Pod that does not meet it. In the workload cluster the level is enforced.
func provePodSecurity(t *testing.T, w *World) {
	_, warnings, err := w.try(t.Context(), w.management, "kubectl label --dry-run=server --overwrite namespace "+system+
		" pod-security.kubernetes.io/enforce=restricted")
	must(t, err)
	var violations []string
	for line := range strings.Lines(warnings) {
		name, reasons, found := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "Warning: ")), ": ")
		if found && !strings.Contains(line, "existing pods in namespace") {
			violations = append(violations, name+": "+reasons)
		}
	}
	const want = "gateway-0 (and 1 other pod): allowPrivilegeEscalation != false, unrestricted capabilities"
	if !slices.Equal(violations, []string{want}) {
		t.Errorf("the violations of restricted are %q, want only %q; all warnings:\n%s", violations, want, warnings)
	}
	level := ask(t, w.workload, "get", "namespace", edges, "--output=jsonpath={.metadata.labels}")
	if !strings.Contains(level, `"pod-security.kubernetes.io/enforce":"restricted"`) {
		t.Errorf("the namespace of the edges has the labels %s", level)
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
			case name == "gateway-agent" && effective == none && statusOf(pid, "CapPrm") == netAdmin:
				agents++ // it raises the capability while it closes connections
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

// dialWorkload begins to dial the workload cluster from the management cluster's router. The only address of the
// workload cluster in a network of the management cluster is that of its router.
func (w *World) dialWorkload(t *testing.T) {
	t.Helper()
	dialed, ctx := make(chan error, 1), context.WithoutCancel(t.Context()) // the dialer has a timeout
	go func() { dialed <- w.management.FromRouter(ctx, "172.31.0.1:6443") }()
	w.dialed = dialed
}

// proveUndialable requires a timeout: the router drops packets, and does not even reject a connection.
func proveUndialable(t *testing.T, w *World) {
	if err := <-w.dialed; err == nil || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("the management cluster dials the workload cluster: %v", err)
	}
}
