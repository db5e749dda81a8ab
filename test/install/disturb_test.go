package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// longestOutage bounds the time without a successful request during any disturbance but the absence of all edges. One
// request may take half of it.
const longestOutage = 2 * requestTime

// mostLostPercent of all requests may be lost by a disturbance that may lose some: on a busy machine it takes longer.
const mostLostPercent = 5

// disturb sends requests while f runs, and records how many there were and how many were lost. It fails if more than a
// number and more than mostLostPercent were; with the number 0, if any was.
func (w *World) disturb(t *testing.T, name string, lost int, f func()) {
	t.Helper()
	began := time.Now()
	stop := promise.Watch(t, w.reach)
	func() {
		defer func() { // f may end the test
			seen := stop()
			t.Logf("%s: %+v in %s", name, seen, time.Since(began).Round(time.Second))
			measured(name+"_s", time.Since(began).Seconds())
			measured(name+"_sent", float64(seen.Sent))
			measured(name+"_lost", float64(seen.Lost))
			measured(name+"_outage_s", seen.Outage.Seconds())
			if lost > 0 {
				lost = max(lost, seen.Sent*mostLostPercent/100)
			}
			if seen.Sent < 10 || seen.Lost > lost || seen.Outage > longestOutage {
				t.Errorf("%s: %d of %d requests failed, and for %s all of them", name, seen.Lost, seen.Sent, seen.Outage)
			}
		}()
		f()
	}()
	eventually(t, w.reach)
}

// waitReady waits until all Pods of the installation and of the edges are ready again.
func (w *World) waitReady(t *testing.T) {
	t.Helper()
	waitRollouts(t, w)
	ask(t, w.workload, "--namespace="+edges, "rollout", "status", "deployment/fairlead-edge", "--timeout=280s")
}

func (w *World) drain(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	ask(t, c, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=280s")
	ask(t, c, "uncordon", node)
	w.waitReady(t)
}

func proveOneDrain(t *testing.T, w *World) {
	w.disturb(t, "drain", 2, func() { w.drain(t, w.management, w.management.Nodes()[0].Name) })
}

func proveDrains(t *testing.T, w *World) {
	w.disturb(t, "drains", 2, func() {
		for _, n := range w.management.Nodes()[1:] {
			w.drain(t, w.management, n.Name)
		}
		for _, n := range w.workload.Nodes() {
			w.drain(t, w.workload, n.Name)
		}
	})
}

func proveContainerd(t *testing.T, w *World) {
	w.disturb(t, "containerd", 0, func() {
		for _, c := range []*cluster.Cluster{w.management, w.workload} {
			for _, n := range c.Nodes() {
				must(t, n.RestartContainerd(t.Context(), 2*time.Second))
			}
		}
	})
}

// proveMemory fills the memory of a container of each program up to its limit, so that the kernel ends its processes.
func proveMemory(t *testing.T, w *World) {
	for _, victim := range []struct {
		cluster                *cluster.Cluster
		namespace, name, title string
		lost                   int
	}{
		{w.management, system, "controller", "controller", 0},
		{w.management, system, "xds-server", "xds_server", 0},
		// What is in flight through a gateway or an edge ends with it. Until the kubelet has reported its end, new
		// connections to the gateway are rejected.
		{w.management, system, "gateway", "gateway", 20},
		{w.workload, edges, "fairlead-edge", "edge", 5},
	} {
		w.disturb(t, "memory_"+victim.title, victim.lost, func() {
			var pods corev1.PodList
			must(t, victim.cluster.Client.List(t.Context(), &pods, client.InNamespace(victim.namespace),
				client.MatchingLabels{"app.kubernetes.io/name": victim.name}))
			pod := &pods.Items[0]
			w.exceed(t, victim.cluster, pod)
			must(t, proc.Wait(t.Context(), evictTime, func(ctx context.Context) error {
				if err := victim.cluster.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
					return err
				}
				status := pod.Status.ContainerStatuses[0]
				if last := status.LastTerminationState.Terminated; last == nil || last.Reason != "OOMKilled" || !status.Ready {
					return fmt.Errorf("the container of %s ended with %+v, and is ready: %t", pod.Name, last, status.Ready)
				}
				return nil
			}))
			w.waitReady(t)
		})
	}
}

// exceed starts a process in the control group of a Pod's container, which writes to as much memory as its limit.
func (w *World) exceed(t *testing.T, c *cluster.Cluster, pod *corev1.Pod) {
	t.Helper()
	container := pod.Status.ContainerStatuses[0].ContainerID
	_, id, _ := strings.Cut(container, "://")
	var groups []string
	for _, root := range []string{"/sys/fs/cgroup/memory/", "/sys/fs/cgroup/"} {
		found, err := filepath.Glob(root + c.Workspace.Name + "/*/kubepods/*/pod*/" + id)
		must(t, err)
		groups = append(groups, found...)
	}
	if len(groups) != 1 {
		t.Fatalf("the container %s of %s has the control groups %q", container, pod.Name, groups)
	}
	limit := pod.Spec.Containers[0].Resources.Limits.Memory().Value()
	fill := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf(
		`echo $$ >"$0/cgroup.procs" && exec dd if=/dev/zero of=/dev/null bs=%d count=1`, limit), groups[0])
	fill.Stderr = os.Stderr
	_ = fill.Run() // the kernel may end it too
}
