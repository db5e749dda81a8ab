package networks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// fault is a fault that is injected into the networks of shop, or of another Cluster.
type fault = faults.Fault[*fleet]

// Check runs check about a Cluster; by default shop.
func (f *fleet) Check(ctx context.Context, cluster string) (faults.Answer, error) {
	return faults.Check(ctx, f.Lab, world.Namespace, cmp.Or(cluster, "shop"))
}

// Healthy returns a condition that is nil once check finds no problem, and has tested every hop of networks.
func (f *fleet) Healthy(cluster string) func(context.Context) error {
	return func(ctx context.Context) error {
		answer, err := f.Check(ctx, cluster)
		switch {
		case err != nil:
			return err
		case answer.Status != check.OK:
			return fmt.Errorf("check says %s", answer)
		}
		for _, id := range []check.ID{
			check.HopNetworks, check.HopEgress, check.HopEgressRoute, check.HopNetworkEdges, check.HopNodes, check.HopForward,
		} {
			if hop := answer.Hop(id); hop.Status != check.OK {
				return fmt.Errorf("the hop %s is %+v", id, hop)
			}
		}
		return nil
	}
}

// Show logs what an operator would see.
func (f *fleet) Show(t *testing.T, cluster string) {
	t.Helper()
	t.Logf("fairlead check says:\n%s", faults.Text(t.Context(), f.Lab, world.Namespace, cmp.Or(cluster, "shop")))
}

// prove proves that check names a fault and that its cure works, and removes what the fault has added.
func (f *fleet) prove(t *testing.T, x fault) {
	t.Helper()
	faults.Prove(t, f, x)
	f.cleanUp(t)
}

// extra is a network that faults add to shop.
const extra = "extra"

// cleanUp removes the network that a fault has added.
func (f *fleet) cleanUp(t *testing.T) {
	t.Helper()
	must(t, client.IgnoreNotFound(f.Management.Client.Delete(t.Context(), &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: extra},
	})))
	eventually(t, func(ctx context.Context) error {
		_, err := f.Cluster(types.NamespacedName{
			Namespace: world.Namespace, Name: extra + v1alpha1.NetworkTunnelSuffix,
		}).Tunnel(ctx)
		if err == nil {
			err = errors.New("the Tunnel of the additional network still exists")
		}
		return client.IgnoreNotFound(err)
	})
}

// faults proves that check names each fault of a network, and that its cure works.
func (f *fleet) faults(t *testing.T) {
	that(t, "check finds no problem before a fault is injected", func(t *testing.T) {
		for _, cluster := range []string{"shop", "bank"} {
			if err := proc.Wait(t.Context(), faults.CureTime, f.Healthy(cluster)); err != nil {
				f.Show(t, cluster)
				t.Fatal(err)
			}
		}
	})
	for _, x := range allFaults()[1:] {
		f.prove(t, x)
	}
}

// restart restarts an agent and its Envoy with another spec, and returns a function that reverts it.
func restart(t *testing.T, a *lab.Agent, change func(*proc.Spec)) func(*testing.T) {
	t.Helper()
	usual := a.Process().Spec
	with := func(t *testing.T, change func(*proc.Spec)) {
		t.Helper()
		world.StopEdge(t, a)
		a.Change(change)
		a.Resume()
	}
	with(t, change)
	return func(t *testing.T) { with(t, func(s *proc.Spec) { *s = usual }) }
}

// patched changes a RemoteNetwork, and returns a function that changes it again.
func (f *fleet) patched(t *testing.T, network, patch, back string) func(*testing.T) {
	t.Helper()
	f.patchNetwork(t, network, patch)
	return func(t *testing.T) { f.patchNetwork(t, network, back) }
}

// restartAPIServer replaces the process of the apiserver by one with other flags.
func (h *controlPlane) restartAPIServer(t *testing.T, change func(args []string) []string) {
	t.Helper()
	spec := h.APIServer.Process.Spec
	h.APIServer.Process.Kill()
	<-h.APIServer.Process.Done()
	spec.Args = change(spec.Args)
	process, err := proc.Start(spec)
	must(t, err)
	h.world.OnClose(func(context.Context) { process.Kill() })
	h.APIServer.Process = process
	eventually(t, func(ctx context.Context) error {
		_, err := h.Kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
}
