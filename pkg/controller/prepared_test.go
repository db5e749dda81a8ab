package controller

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// preparedTunnel creates what `fairlead move prepare` does: a Tunnel without a Cluster that waits for a limited time.
func preparedTunnel(t *testing.T, m *management, id string, lasts time.Duration) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.NewNamespace(t, m), Name: "c1", Annotations: map[string]string{
			v1alpha1.PreparedAnnotation: time.Now().Add(lasts).Format(time.RFC3339),
		}},
		Spec: v1alpha1.TunnelSpec{ID: id},
	}
	controllertest.Create(t, m, tunnel)
	return tunnel
}

// tokenOf waits for the token of a Tunnel that waits for its Cluster.
func tokenOf(t *testing.T, m *management, tunnel *v1alpha1.Tunnel) string {
	t.Helper()
	secret := &corev1.Secret{}
	controllertest.Eventually(t, func() error {
		return m.Get(
			t.Context(), client.ObjectKey{Namespace: tunnel.Namespace, Name: tunnel.Name + v1alpha1.BootstrapSecretSuffix},
			secret,
		)
	})
	if !metav1.IsControlledBy(secret, tunnel) ||
		!strings.Contains(string(secret.Data[v1alpha1.BootstrapFileKey]), tunnel.Spec.ID) {
		t.Errorf("the Secret is of %v", secret.OwnerReferences)
	}
	return string(secret.Data[v1alpha1.BootstrapTokenKey])
}

// enrolment returns the request of an xds-server for a new edge of a Tunnel.
func enrolment(
	t *testing.T, tunnel *v1alpha1.Tunnel, token string,
) (csr *certificatesv1.CertificateSigningRequest, node string) {
	t.Helper()
	node = model.NewNodeName()
	csr = controllertest.EdgeRequest(t, tunnel.Namespace+"/"+tunnel.Name)
	csr.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
	csr.Annotations[v1alpha1.RequestNodeAnnotation] = node
	csr.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken(token)
	return csr, node
}

// moveIn does what clusterctl does to the management cluster that it moves a Cluster to, where the Tunnel already
// exists.
func moveIn(t *testing.T, m *management, tunnel *v1alpha1.Tunnel) *clusterv1.Cluster {
	t.Helper()
	cluster := kubetest.Cluster(tunnel.Namespace, tunnel.Name)
	cluster.Spec.Paused = ptr.To(true)
	controllertest.Create(t, m, cluster)
	settled(t, m, tunnel.Namespace) // the controller has processed the Tunnel together with its Cluster
	moved := controllertest.TunnelNamed(cluster)
	moved.Spec.ID = tunnel.Spec.ID
	objects.CompleteTunnel(moved, cluster)
	have := controllertest.Read(t, m, tunnel)
	moved.UID, moved.ResourceVersion = have.UID, have.ResourceVersion
	if err := m.Update(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// certificateUsages are the usages of an edge's leaf.
var certificateUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

func TestATunnelIsPreparedForItsCluster(t *testing.T) {
	m := apiserver(t)
	tunnel := preparedTunnel(t, m, model.NewID(), time.Hour)
	cluster := kubetest.Cluster(tunnel.Namespace, tunnel.Name)
	waiting := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonWaitingForCluster)
	if c := apimeta.FindStatusCondition(
		waiting.Status.Conditions, v1alpha1.ConditionAccepted,
	); c.Status != metav1.ConditionUnknown {
		t.Errorf("it is accepted: %s", c.Status)
	}
	token := tokenOf(t, m, waiting)
	csr, node := enrolment(t, waiting, token)
	csr = answered(t, m, csr)
	checkEdgeLeaf(t, m, csr.Status.Certificate, node, tunnel.Spec.ID)
	waitCondition(t, m, cluster, v1alpha1.ConditionEnrolled, v1alpha1.ReasonEnrolled)

	cluster = moveIn(t, m, tunnel)
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
	served := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	if served.UID != tunnel.UID || served.Annotations[v1alpha1.PreparedAnnotation] != "" ||
		!metav1.IsControlledBy(served, cluster) {
		t.Errorf("it is not the one that waited, or waits still: %v", served.ObjectMeta)
	}
	if !slices.ContainsFunc(
		served.Status.Edges, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == model.NodeID(node) },
	) {
		t.Errorf("its edge is not on record: %v", served.Status.Edges)
	}
	if again := tokenOf(t, m, served); again != token {
		t.Error("its token is another one")
	}
	renewal, _ := enrolment(t, served, "")
	renewal.Annotations[v1alpha1.RequestNodeAnnotation] = node
	delete(renewal.Annotations, v1alpha1.RequestTokenAnnotation)
	renewal = answered(t, m, renewal)
	checkEdgeLeaf(t, m, renewal.Status.Certificate, node, tunnel.Spec.ID)
}

// checkEdgeLeaf is checkLeaf for an edge.
func checkEdgeLeaf(t *testing.T, m *management, chain []byte, node, id string) {
	t.Helper()
	checkLeaf(t, m, chain, model.Subject{Role: model.RoleEdge, Node: node, ID: id}, certificateUsages...)
}

func TestAPreparedTunnelServesALocallyCreatedCluster(t *testing.T) {
	m := apiserver(t)
	tunnel := preparedTunnel(t, m, model.NewID(), time.Hour)
	tokenOf(t, m, tunnel)
	cluster := kubetest.Cluster(tunnel.Namespace, tunnel.Name)
	controllertest.Create(t, m, cluster)
	served := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	if served.UID != tunnel.UID || served.Annotations[v1alpha1.PreparedAnnotation] != "" {
		t.Errorf("it is not the one that waited, or waits still: %v", served.ObjectMeta)
	}
}

func TestAPreparedTunnelEndsAfterItsDeadline(t *testing.T) {
	m := apiserver(t)
	id := model.NewID()
	first := preparedTunnel(t, m, id, 5*time.Second)
	token := tokenOf(t, m, first)
	controllertest.WaitGone(t, m, first)
	controllertest.WaitGone(
		t, m,
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: first.Name + v1alpha1.BootstrapSecretSuffix},
		},
	)
	checkEnded(t, m, id)
	late, _ := enrolment(t, first, token)
	if reason := denialOf(answered(t, m, late)); reason != signer.ReasonUnknownTunnel {
		t.Errorf("who comes late is answered %q", reason)
	}

	// It can be prepared again, and is then no longer recorded as ended.
	second := preparedTunnel(t, m, id, time.Hour)
	tokenOf(t, m, second)
	controllertest.Eventually(t, func() error {
		if until, ok := endedIDs(t, m)[id]; ok {
			return fmt.Errorf("its edges are denied until %s", until)
		}
		return nil
	})
	csr, node := enrolment(t, second, tokenOf(t, m, second))
	csr = answered(t, m, csr)
	checkEdgeLeaf(t, m, csr.Status.Certificate, node, id)
}

// TestAPreparedTunnelTakesNoNameOfAnotherTunnel prepares one in the management cluster that already has the Cluster.
func TestAPreparedTunnelTakesNoNameOfAnotherTunnel(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	served := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	tunnel := preparedTunnel(t, m, served.Spec.ID, time.Hour)
	waitCondition(
		t, m, kubetest.Cluster(tunnel.Namespace, tunnel.Name), v1alpha1.ConditionAccepted, v1alpha1.ReasonNameTaken,
	)
	csr, _ := enrolment(t, tunnel, "fl1.any")
	if reason := denialOf(answered(t, m, csr)); reason != signer.ReasonNotHeld {
		t.Errorf("its edge is answered %q", reason)
	}
	settled(t, m, tunnel.Namespace)
	if err := m.Get(
		t.Context(), client.ObjectKey{Namespace: tunnel.Namespace, Name: "c1" + v1alpha1.BootstrapSecretSuffix},
		&corev1.Secret{},
	); err == nil {
		t.Error("it has a token")
	}
	if err := m.Delete(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, tunnel)
	settled(t, m, tunnel.Namespace)
	if until, ok := endedIDs(t, m)[served.Spec.ID]; ok {
		t.Errorf("the edges of the one that lives are denied until %s", until)
	}
}

// TestAPreparedTunnelDoesNotExpireDuringAMove expires in the middle of a move: it must not end then.
func TestAPreparedTunnelDoesNotExpireDuringAMove(t *testing.T) {
	m := apiserver(t)
	tunnel := preparedTunnel(t, m, model.NewID(), 3*time.Second)
	tokenOf(t, m, tunnel)
	cluster := kubetest.Cluster(tunnel.Namespace, tunnel.Name)
	cluster.Spec.Paused = ptr.To(true)
	controllertest.Create(t, m, cluster)
	until := time.Now().Add(5 * time.Second)
	controllertest.Eventually(t, func() error {
		if left := time.Until(until); left > 0 {
			return fmt.Errorf("%s to go", left)
		}
		return nil
	})
	settled(t, m, tunnel.Namespace)
	if now := controllertest.Read(t, m, tunnel); !now.DeletionTimestamp.IsZero() {
		t.Error("it is being deleted")
	}
}
