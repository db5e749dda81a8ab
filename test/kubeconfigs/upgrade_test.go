package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rollsOut proves that Cluster API upgrades all machines to another version of Kubernetes by replacing them, through
// the tunnel.
func (m *member) rollsOut(t *testing.T) {
	next, err := m.lab.Parts.NextVersion(t.Context())
	must(t, err)
	old, err := m.machines(t.Context())
	must(t, err)
	rollout := &rollout{member: m, version: next, size: len(old), old: names(old)}
	begin := time.Now()
	done := that(t, "KCP replaces all control-plane machines one by one for a new version", func(t *testing.T) {
		must(t, m.setVersions(t.Context(), next))
		within(t, 4*changed, "rolled_out_s", rollout.isDone)
		must(t, rollout.wrong)
		measured("rolled_out_per_machine_s", time.Since(begin).Seconds()/float64(rollout.size))
		within(t, time.Minute, "", m.versionIs(next))
	})
	if !done {
		return
	}
	that(
		t,
		"each new machine has its own reverse tunnel, and edges of replaced machines have none",
		func(t *testing.T) {
			within(t, time.Minute, "", m.edgesAreOf(rollout.now))
		},
	)
	that(t, "the MachineDeployment replaces its worker, which joins through the same endpoint", func(t *testing.T) {
		within(t, changed, "worker_replaced_s", m.workerHas(next))
	})
	that(t, "KCP replaces no further machine after the upgrade", func(t *testing.T) {
		within(t, time.Minute, "", m.upToDate(next, rollout.size))
		machines, err := m.machines(t.Context())
		must(t, err)
		if now := names(machines); !slices.Equal(now, rollout.now) {
			t.Errorf("the control plane has the machines %v: after the rollout they were %v", now, rollout.now)
		}
		must(t, m.leadsThrough(t.Context()))
		within(t, time.Minute, "", m.RemoteConnectionProbe)
	})
}

// setVersions sets the version of the control plane and of the workers, as a user does.
func (m *member) setVersions(ctx context.Context, version string) error {
	controlPlane, err := m.controlPlane(ctx)
	if err != nil {
		return err
	}
	deployment := &clusterv1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name + "-workers"},
	}
	c := m.lab.Management.Client
	return errors.Join(
		c.Patch(
			ctx,
			controlPlane,
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"version":%q}}`, version)),
		),
		c.Patch(
			ctx,
			deployment,
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"spec":{"version":%q}}}}`, version)),
		),
	)
}

// rollout observes what KCP does to the machines of a member.
type rollout struct {
	*member
	version string
	size    int
	old     []string // machines, by name
	now     []string
	wrong   error // a violation that was observed at any time
}

// isDone returns nil once all machines are new and of the version, or after a violation.
func (r *rollout) isDone(ctx context.Context) error {
	machines, err := r.machines(ctx)
	if err != nil {
		return err
	}
	kubeconfig, err := r.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	if r.wrong = errors.Join(r.oneByOne(machines), r.usesTunnel(kubeconfig)); r.wrong != nil {
		return nil
	}
	r.now = names(machines)
	for _, name := range r.now {
		if slices.Contains(r.old, name) {
			return fmt.Errorf("machine %s is still there, one of %d", name, len(machines))
		}
	}
	return errors.Join(r.hasMachines(r.size)(ctx), r.upToDate(r.version, r.size)(ctx))
}

// oneByOne returns an error if more than one machine is being replaced, or if a new one has another version.
func (r *rollout) oneByOne(machines []clusterv1.Machine) error {
	staying := 0
	for i := range machines {
		if machines[i].DeletionTimestamp.IsZero() {
			staying++
		}
		if !slices.Contains(r.old, machines[i].Name) && machines[i].Spec.Version != r.version {
			return fmt.Errorf("the new machine %s has version %s, not %s", machines[i].Name, machines[i].Spec.Version, r.version)
		}
	}
	if staying < r.size || len(machines) > r.size+1 {
		return fmt.Errorf(
			"%d machines, %d of them unchanged: KCP should replace one of %d at a time", len(machines), staying, r.size,
		)
	}
	return nil
}

// names returns the sorted names of machines.
func names(machines []clusterv1.Machine) []string {
	var all []string
	for i := range machines {
		all = append(all, machines[i].Name)
	}
	slices.Sort(all)
	return all
}

// upToDate returns a condition that is nil once KCP has nothing to do: every machine is as specified, and KCP has
// observed the last change.
func (m *member) upToDate(version string, count int) func(context.Context) error {
	return func(ctx context.Context) error {
		object, err := m.controlPlane(ctx)
		if err != nil {
			return err
		}
		now, _, _ := unstructured.NestedString(object.Object, "status", "version")
		good, _, _ := unstructured.NestedInt64(object.Object, "status", "upToDateReplicas")
		seen, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
		if now != version || good != int64(count) || seen != object.GetGeneration() {
			return fmt.Errorf(
				"KCP says version %s, %d machines up to date; it has seen generation %d of %d", now, good, seen,
				object.GetGeneration(),
			)
		}
		return errors.Join(
			hasCondition(object, clusterv1.MachinesUpToDateCondition, metav1.ConditionTrue),
			hasCondition(object, clusterv1.RollingOutCondition, metav1.ConditionFalse),
		)
	}
}

// versionIs returns a condition that is nil once the apiserver reports a version through the tunnel.
func (m *member) versionIs(version string) func(context.Context) error {
	return func(ctx context.Context) error {
		clients, err := m.Clients(ctx)
		if err != nil {
			return err
		}
		answer, err := clients.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
		if err == nil && !strings.Contains(string(answer), `"gitVersion": "`+version+`"`) {
			err = fmt.Errorf("an apiserver says %s: want %s", answer, version)
		}
		return err
	}
}

// edgesAreOf returns a condition that is nil once exactly the edges of the given machines have tunnels, one each.
func (m *member) edgesAreOf(machines []string) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := m.Tunnel(ctx)
		if err != nil {
			return err
		}
		var hosts []string
		for _, edge := range tunnel.Status.Edges {
			if len(edge.Gateways) > 0 {
				hosts = append(hosts, edge.Host)
			}
		}
		slices.Sort(hosts)
		if !slices.Equal(hosts, machines) {
			return fmt.Errorf("edges with tunnels are on %v, machines are %v", hosts, machines)
		}
		return nil
	}
}

// workerHas returns a condition that is nil once there is one worker and its Node has a version.
func (m *member) workerHas(version string) func(context.Context) error {
	return func(ctx context.Context) error {
		workers, err := m.workers(ctx)
		if err != nil {
			return err
		}
		if len(workers) != 1 || workers[0].Spec.Version != version {
			return fmt.Errorf("%d workers: want one, of version %s", len(workers), version)
		}
		if info := workers[0].Status.NodeInfo; info == nil || info.KubeletVersion != version {
			return fmt.Errorf("the Node of the worker says %+v: want version %s", info, version)
		}
		return isCondition(workers[0].Status.Conditions, clusterv1.MachineNodeReadyCondition, metav1.ConditionTrue)
	}
}
