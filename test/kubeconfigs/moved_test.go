package kubeconfigs

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
)

// move proves that clusterctl moves all Clusters of a namespace to a second management cluster with its own gateways,
// and that their edges are enrolled there in advance. It returns the members of the second management cluster.
func move(t *testing.T, first, second *lab.Lab, members []*member) []*member {
	target, err := first.SecondKubeconfig(t.Context(), second)
	must(t, err)
	var moved []*member
	for _, m := range members {
		moved = append(moved, newMember(second, m.Name, m.mode))
		that(
			t,
			"fairlead move prepare enrols the edges of "+m.Name+" in the second installation through the tunnel of the first",
			func(t *testing.T) {
				begin := time.Now()
				out, err := first.Exec(t.Context(), "move", "prepare", "--namespace="+namespace, "--to-kubeconfig="+target, m.Name)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				measured("prepare_s", time.Since(begin).Seconds())
				within(t, time.Minute, "", moved[len(moved)-1].isEnrolled)
				within(t, time.Minute, "", m.RemoteConnectionProbe)
			},
		)
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
		that(
			t, "neither installation revokes an edge of "+m.Name+" during the move",
			func(t *testing.T) { members[i].sourceIsClean(t, m) },
		)
	}
	return moved
}

// isEnrolled returns nil once the prepared Tunnel has recorded an edge.
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

// leadsThrough returns nil once the kubeconfig leads through the tunnel in this member's mode.
func (m *member) leadsThrough(ctx context.Context) error {
	kubeconfig, err := m.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	return m.usesTunnel(kubeconfig)
}

// sourceIsClean checks that the source has neither the Tunnel nor a record of its end, and that no edge is revoked at
// the target.
func (m *member) sourceIsClean(t *testing.T, target *member) {
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
	err = m.lab.Management.Client.Get(
		t.Context(), client.ObjectKey{Namespace: lab.InstallationNamespace, Name: v1alpha1.EndedTunnelsConfigMapName}, ended,
	)
	must(t, client.IgnoreNotFound(err))
	if until, ok := ended.Data[tunnel.Spec.ID]; ok {
		t.Errorf("the source refuses the edges of the tunnel until %s", until)
	}
}
