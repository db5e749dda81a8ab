package install

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// machineName is the host name of the machine with systemd's units.
const machineName = "machine"

// staticPod is the manifest of the static Pod on the first node of the workload cluster.
const staticPod = "/etc/kubernetes/manifests/fairlead-edge.yaml"

// proveForms runs the commands that fairlead join prints for a node and for a machine, beside the Deployment.
func proveForms(t *testing.T, w *World) {
	join := "fairlead join -n " + shops + " paris --image=" + w.images.image("edge") + " --form="
	node := w.workload.Nodes()[0]
	_, err := node.Run(t.Context(), "sh", "-c", w.run(t, w.management, join+"static-pod"))
	must(t, err)
	w.startMachine(t, w.run(t, w.management, join+"systemd"))
	eventually(t, w.connected(t, 4, node.Name, machineName))
	ask(t, w.workload, "--namespace=kube-system", "wait", "pod/fairlead-edge-"+node.Name, "--for=condition=Ready",
		"--timeout=280s")
}

// connected returns a condition: exactly a number of edges have reverse tunnels to all gateways, and hosts are among
// them.
func (w *World) connected(t *testing.T, edges int, hosts ...string) func(context.Context) error {
	t.Helper()
	gateways, err := strconv.Atoi(ask(t, w.management, "--namespace="+system, "get", "statefulset/gateway",
		"--output=jsonpath={.spec.replicas}"))
	must(t, err)
	return func(ctx context.Context) error {
		var tunnel v1alpha1.Tunnel
		if err := w.management.Client.Get(ctx, types.NamespacedName{Namespace: shops, Name: "paris"}, &tunnel); err != nil {
			return err
		}
		var found []string
		for _, edge := range tunnel.Status.Edges {
			if len(edge.Gateways) == gateways {
				found = append(found, edge.Host)
			}
		}
		for _, host := range hosts {
			if !slices.Contains(found, host) {
				return fmt.Errorf("the edge of %s is not connected, only %q", host, found)
			}
		}
		if len(found) != edges {
			return fmt.Errorf("%d edges are connected to %d gateways (%q), not %d", len(found), gateways, found, edges)
		}
		return nil
	}
}

// startMachine runs the command of join on a new machine that has the two programs, as the unit of the agent requires.
func (w *World) startMachine(t *testing.T, command string) {
	t.Helper()
	m, err := w.workload.StartMachine(t.Context(), machineName)
	must(t, err)
	must(t, m.InstallPrograms(t.Context(), w.commands+"/edge-agent", w.workload.Parts.RealPath("envoy")))
	_, err = m.Run(t.Context(), command, "sh")
	must(t, err)
	calls, err := m.SystemctlCalls(t.Context())
	must(t, err)
	if want := "daemon-reload\nenable edge-agent\nreload-or-restart edge-agent\n"; calls != want {
		t.Fatalf("join calls systemctl with %q, want %q", calls, want)
	}
	w.machine = m
	w.units = []*proc.Service{w.startUnit(t, "edge-envoy"), w.startUnit(t, "edge-agent")}
}

func (w *World) startUnit(t *testing.T, name string) *proc.Service {
	t.Helper()
	service, err := w.machine.StartUnit(name)
	must(t, err)
	return service
}

// removeEdges ends all edges, in an order that leaves none to the end.
func (w *World) removeEdges(t *testing.T) {
	t.Helper()
	scaleEdges(t, w, 0)
	for _, unit := range w.units {
		must(t, unit.Terminate(time.Minute))
	}
	node := w.workload.Nodes()[0]
	_, err := node.Run(t.Context(), "mv", staticPod, "/etc/fairlead/away.yaml")
	must(t, err)
	ask(t, w.workload, "--namespace=kube-system", "wait", "pod/fairlead-edge-"+node.Name, "--for=delete", "--timeout=280s")
	ask(t, w.workload, "--namespace="+edges, "wait", "pods", "--all", "--for=delete", "--timeout=280s")
}

func scaleEdges(t *testing.T, w *World, replicas int) {
	t.Helper()
	ask(t, w.workload, "--namespace="+edges, "scale", "deployment/fairlead-edge", fmt.Sprintf("--replicas=%d", replicas))
}

// proveAbsence brings the Pods back first: their keys ended with them, and the token in their Secret has expired.
func proveAbsence(t *testing.T, w *World) {
	w.removeEdges(t)
	gone := time.Now()
	if err := w.reach(t.Context()); err == nil {
		t.Fatal("the workload cluster is reachable without an edge")
	}
	time.Sleep(time.Until(gone.Add(tokenLife + 15*time.Second)))
	began := time.Now()
	scaleEdges(t, w, 2)
	eventually(t, w.reach)
	measured("absence_s", began.Sub(gone).Seconds())
	measured("absence_pods_back_s", time.Since(began).Seconds())
	ask(t, w.workload, "--namespace="+edges, "rollout", "status", "deployment/fairlead-edge", "--timeout=280s")
	began = time.Now()
	node := w.workload.Nodes()[0]
	_, err := node.Run(t.Context(), "mv", "/etc/fairlead/away.yaml", staticPod)
	must(t, err)
	for _, unit := range w.units {
		unit.Resume()
	}
	eventually(t, w.connected(t, 4, node.Name, machineName))
	measured("absence_machines_back_s", time.Since(began).Seconds())
}
