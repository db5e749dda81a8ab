package controller

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// TestRevokingAnEdgeEndsItsToken also covers a paused Cluster.
func TestRevokingAnEdgeEndsItsToken(t *testing.T) {
	m := apiserver(t)
	for name, pause := range map[string]bool{"served": false, "paused": true} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
			controllertest.Create(t, m, cluster)
			secret := controllertest.BootstrapOf(cluster)
			controllertest.Eventually(t, func() error { return m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret) })
			token := string(secret.Data[v1alpha1.BootstrapTokenKey])
			tunnel := controllertest.Read(t, m, controllertest.TunnelNamed(cluster))
			csr := controllertest.EdgeRequest(t, cluster.Namespace+"/c1")
			csr.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
			csr.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken(token)
			if csr = answered(t, m, csr); len(csr.Status.Certificate) == 0 {
				t.Fatalf("not enrolled: %s", denialOf(csr))
			}
			if pause {
				controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
			}
			controllertest.Edit(
				t, m, tunnel, func(o *v1alpha1.Tunnel) { o.Spec.RevokedEdges = []string{controllertest.TestNode} },
			)
			controllertest.Eventually(t, func() error {
				status := controllertest.Read(t, m, tunnel).Status
				if e := records.EdgeOf(status.Edges, controllertest.TestNode); e == nil || e.RevokedAt == nil ||
					e.TokenSHA256 != enrol.HashToken(token) {
					return fmt.Errorf("edge %+v", e)
				}
				if records.TokenIndex(status.Tokens, enrol.HashToken(token)) >= 0 {
					return errors.New("the token by which it came is still good")
				}
				return nil
			})
			if !pause {
				waitToken(t, m, cluster, token)
			}
			renewal := controllertest.EdgeRequest(t, cluster.Namespace+"/c1")
			renewal.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
			delete(renewal.Annotations, v1alpha1.RequestTokenAnnotation)
			if got := denialOf(answered(t, m, renewal)); got != signer.ReasonRevoked {
				t.Errorf("a renewal got %q", got)
			}
		})
	}
}

// TestARevokedEdgeCannotEnrolWithItsToken enrols before the status can have been written again.
func TestARevokedEdgeCannotEnrolWithItsToken(t *testing.T) {
	m := apiserver(t)
	tunnel := pausedTunnel(t, m)
	first := answered(t, m, controllertest.EdgeRequest(t, tunnel.Namespace+"/c1"))
	if len(first.Status.Certificate) == 0 {
		t.Fatalf("not enrolled: %s", denialOf(first))
	}
	controllertest.Eventually(t, func() error { // the live state was just written
		if e := records.EdgeOf(controllertest.Read(t, m, tunnel).Status.Edges, controllertest.TestNode); e == nil {
			return errors.New("the edge is not on record")
		}
		return nil
	})
	controllertest.Edit(t, m, tunnel, func(o *v1alpha1.Tunnel) { o.Spec.RevokedEdges = []string{controllertest.TestNode} })
	again := controllertest.EdgeRequest(t, tunnel.Namespace+"/c1")
	again.Annotations[v1alpha1.RequestNodeAnnotation] = "edge-again"
	if got := denialOf(answered(t, m, again)); got != signer.ReasonRevoked && got != signer.ReasonUnknownToken {
		t.Errorf("the revoked edge is back as another: %q", got)
	}
}
