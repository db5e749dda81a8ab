package kubeconfigs

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
)

// move proves that clusterctl takes all Clusters of a namespace to a second management cluster with gateways of its own, and
// their edges are there before them. It returns the members as the second management cluster has them.
func move(t *testing.T, first, second *lab.Lab, members []*member) []*member {
	target, err := first.SecondKubeconfig(t.Context(), second)
	must(t, err)
	var moved []*member
	for _, m := range members {
		moved = append(moved, newMember(second, m.Name, m.mode))
		that(t, "fairlead move prepare enrols the edges of "+m.Name+" in the second installation, through the tunnel of the first", func(t *testing.T) {
			begin := time.Now()
			out, err := first.Exec(t.Context(), "move", "prepare", "--namespace="+namespace, "--to-kubeconfig="+target, m.Name)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			measured("prepare_s", time.Since(begin).Seconds())
			within(t, time.Minute, "", moved[len(moved)-1].isEnrolled)
			within(t, time.Minute, "", m.RemoteConnectionProbe)
		})
	}
	if t.Failed() {
		return nil
	}
	begin := time.Now()
	that(t, "clusterctl moves the Clusters", func(t *testing.T) {
		out, err := first.Clusterctl(t.Context(), "move", "--namespace="+namespace, "--to-kubeconfig="+target, "--v=5")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		measured("clusterctl_move_s", time.Since(begin).Seconds())
	})
	for i, m := range moved {
		that(t, "Cluster API of the second installation manages "+m.Name+" through its own gateway", func(t *testing.T) {
			within(t, 2*time.Minute, "", m.RemoteConnectionProbe)
			measured("moved_"+string(m.mode)+"_s", time.Since(begin).Seconds())
			within(t, 2*time.Minute, "", m.hasMachines(1))
			within(t, time.Minute, "", m.decided)
			within(t, time.Minute, "", m.leadsThrough)
		})
		that(t, "no edge of "+m.Name+" is revoked, neither here nor by the deletion at the source", func(t *testing.T) { members[i].leftInPeace(t, m) })
	}
	return moved
}

// isEnrolled is the condition that the prepared Tunnel has an edge on record.
func (m *member) isEnrolled(ctx context.Context) error {
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return err
	}
	if len(tunnel.Status.Edges) == 0 {
		return fmt.Errorf("the second installation has no edge of %s on record: %+v", m, tunnel.Status.Conditions)
	}
	return nil
}

// leadsThrough is the condition that the kubeconfig leads through the tunnel, by this member's mode.
func (m *member) leadsThrough(ctx context.Context) error {
	kubeconfig, err := m.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	return m.rightWay(kubeconfig)
}

// leftInPeace checks that the source has neither the Tunnel nor a record of its end, and that no edge is revoked at the target.
func (m *member) leftInPeace(t *testing.T, target *member) {
	if _, err := m.Tunnel(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("reading the Tunnel at the source: %v, want not found", err)
	}
	tunnel, err := target.Tunnel(t.Context())
	must(t, err)
	for _, edge := range tunnel.Status.Edges {
		if edge.RevokedAt != nil {
			t.Errorf("edge %s is revoked", edge.NodeID)
		}
	}
	ended := &corev1.ConfigMap{}
	err = m.lab.Management.Client.Get(t.Context(), client.ObjectKey{Namespace: lab.InstallationNamespace, Name: v1alpha1.EndedTunnelsConfigMapName}, ended)
	must(t, client.IgnoreNotFound(err))
	if until, ok := ended.Data[tunnel.Spec.ID]; ok {
		t.Errorf("the source refuses the edges of the tunnel until %s", until)
	}
}

// optsOut proves that a Cluster without the label has the kubeconfig again that KCP wrote.
func (m *member) optsOut(t *testing.T) {
	cluster, err := m.Get(t.Context())
	must(t, err)
	before, err := m.Secret(t.Context(), "-kubeconfig")
	must(t, err)
	must(t, m.Patch(t.Context(), map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.TunnelLabel: nil}}}))
	within(t, time.Minute, "opted_out_s", func(ctx context.Context) error {
		kubeconfig, err := m.Kubeconfig(ctx)
		if err != nil {
			return err
		}
		e, err := entry(kubeconfig, m.Name)
		if err != nil {
			return err
		}
		if e.Server != "https://"+cluster.Spec.ControlPlaneEndpoint.String() || e.ProxyURL != "" || e.TLSServerName != "" {
			return fmt.Errorf("server %q, tls-server-name %q, proxy-url %q", e.Server, e.TLSServerName, e.ProxyURL)
		}
		return nil
	})
	after, err := m.Secret(t.Context(), "-kubeconfig")
	must(t, err)
	must(t, sameOwner(before, after))
}

// sameOwner is no error if nothing but the way changed that a kubeconfig Secret says.
func sameOwner(before, after *corev1.Secret) error {
	old, err := clientcmd.Load(before.Data["value"])
	if err != nil {
		return err
	}
	now, err := clientcmd.Load(after.Data["value"])
	if err != nil {
		return err
	}
	for name, user := range old.AuthInfos {
		if now.AuthInfos[name] == nil || string(now.AuthInfos[name].ClientCertificateData) != string(user.ClientCertificateData) {
			return fmt.Errorf("user %q of the kubeconfig changed", name)
		}
	}
	switch {
	case before.Type != after.Type:
		return fmt.Errorf("its type was %q and is %q", before.Type, after.Type)
	case len(after.OwnerReferences) != 1 || after.OwnerReferences[0].Kind != controlPlaneKind:
		return fmt.Errorf("its owners are %v", after.OwnerReferences)
	}
	return nil
}

// workerLeaves proves that a Node is drained and removed through the tunnel when its Machine goes.
func (m *member) workerLeaves(t *testing.T) {
	inside, err := m.Inside(t.Context())
	must(t, err)
	workers, err := m.workers(t.Context())
	must(t, err)
	if len(workers) != 1 {
		t.Fatalf("%d workers, want one", len(workers))
	}
	node := client.ObjectKey{Name: workers[0].Status.NodeRef.Name}
	must(t, inside.Get(t.Context(), node, &corev1.Node{}))
	deployment := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name + "-workers"}}
	must(t, m.lab.Management.Client.Delete(t.Context(), deployment))
	within(t, changed, "worker_left_s", func(ctx context.Context) error {
		err := inside.Get(ctx, node, &corev1.Node{})
		if err == nil {
			return fmt.Errorf("the Node %s is still there", node.Name)
		}
		return client.IgnoreNotFound(err)
	})
}

// isDeleted proves that nothing is left of a workload cluster that Cluster API removes. It neither drains nor removes Nodes of
// a Cluster that is being deleted.
func (m *member) isDeleted(t *testing.T) {
	must(t, m.Delete(t.Context()))
	within(t, 2*changed, "deleted_s", m.Gone)
	if left := m.lab.Cloud.Machines(m.NamespacedName); len(left) > 0 {
		t.Errorf("%d machines run still", len(left))
	}
	within(t, time.Minute, "", func(ctx context.Context) error {
		if _, err := m.Tunnel(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading its Tunnel: %w", err)
		}
		return nil
	})
}
