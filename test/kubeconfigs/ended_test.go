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
)

// ends proves that a workload cluster can leave Fairlead and come back, and that Cluster API removes it in the end.
func (m *member) ends(t *testing.T) {
	if m.mode == v1alpha1.KubeconfigModeConnect { // the other member's worker is deleted with its Cluster
		that(t, "Cluster API removes a worker's Node through the tunnel when its Machine is deleted", m.workerLeaves)
	}
	that(t, "opting out restores the kubeconfig as KCP wrote it", m.optsOut)
	that(t, "a Cluster that opts in again is reached through a new edge", m.optsInAgain)
	that(t, "Cluster API removes a whole workload cluster with all its objects", m.isDeleted)
}

// optsInAgain brings back a Cluster that has opted out. It gets another tunnel, so the old edges are useless, and a new
// edge is started anywhere in the network of the workload cluster.
func (m *member) optsInAgain(t *testing.T) {
	begin := time.Now()
	must(t, m.optIn(t.Context()))
	bootstrap, err := m.Bootstrap(t.Context())
	must(t, err)
	_, err = m.lab.StartEdge("edge-"+m.Name, bootstrap)
	must(t, err)
	within(t, time.Minute, "", m.leadsThrough)
	within(t, time.Minute, "", m.tunnelHasStatus(v1alpha1.ConditionReady, metav1.ConditionTrue))
	kubeconfig, err := m.Kubeconfig(t.Context())
	must(t, err)
	_, err = m.lab.Kubectl(t.Context(), kubeconfig, "get", "--raw=/readyz")
	must(t, err)
	measured("opted_in_again_s", time.Since(begin).Seconds())
}

// optsOut proves that a Cluster without the label has the kubeconfig that KCP wrote.
func (m *member) optsOut(t *testing.T) {
	cluster, err := m.Get(t.Context())
	must(t, err)
	before, err := m.Secret(t.Context(), "-kubeconfig")
	must(t, err)
	must(
		t,
		m.Patch(t.Context(), map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.TunnelLabel: nil}}}),
	)
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
	within(t, time.Minute, "", m.hasNoTunnel)
}

func (m *member) hasNoTunnel(ctx context.Context) error {
	if _, err := m.Tunnel(ctx); !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading its Tunnel: %w, want not found", err)
	}
	return nil
}

// sameOwner returns an error if anything in a kubeconfig Secret changed except the server that it leads to.
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
		if now.AuthInfos[name] == nil ||
			string(now.AuthInfos[name].ClientCertificateData) != string(user.ClientCertificateData) {
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

// workerLeaves proves that a Node is drained and removed through the tunnel when its Machine is deleted.
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
	deployment := &clusterv1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name + "-workers"},
	}
	must(t, m.lab.Management.Client.Delete(t.Context(), deployment))
	within(t, changed, "worker_left_s", func(ctx context.Context) error {
		err := inside.Get(ctx, node, &corev1.Node{})
		if err == nil {
			return fmt.Errorf("the Node %s is still there", node.Name)
		}
		return client.IgnoreNotFound(err)
	})
}

// isDeleted proves that nothing is left of a workload cluster that Cluster API removes. Cluster API neither drains nor
// removes the Nodes of a Cluster that is being deleted.
func (m *member) isDeleted(t *testing.T) {
	must(t, m.Delete(t.Context()))
	within(t, 2*changed, "deleted_s", m.Gone)
	if left := m.lab.Cloud.Machines(m.NamespacedName); len(left) > 0 {
		t.Errorf("%d machines run still", len(left))
	}
	within(t, time.Minute, "", m.hasNoTunnel)
}
