package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/model"
)

// serve waits until the real controller has made a Tunnel, and writes edges into its status as if gateways had reported
// them.
func serve(t *testing.T, p *person, edges ...v1alpha1.EdgeStatus) client.ObjectKey {
	t.Helper()
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, p), "c1")
	if err := p.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKeyFromObject(cluster)
	kubetest.Eventually(t, "there is a Tunnel", func() error {
		tunnel := &v1alpha1.Tunnel{}
		if err := p.Get(t.Context(), key, tunnel); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionAccepted) {
			return errors.New("it is not accepted")
		}
		return nil
	})
	setStatus(t, p, key, func(status *v1alpha1.TunnelStatus) {
		status.Edges = edges
		meta.SetStatusCondition(
			&status.Conditions,
			metav1.Condition{
				Type:   v1alpha1.ConditionTunnelReady,
				Status: metav1.ConditionTrue,
				Reason: v1alpha1.ReasonConnected,
			},
		)
	})
	return key
}

func setStatus(t *testing.T, p *person, key client.ObjectKey, change func(*v1alpha1.TunnelStatus)) {
	t.Helper()
	kubetest.Eventually(t, "the status is written", func() error {
		tunnel := &v1alpha1.Tunnel{}
		if err := p.Get(t.Context(), key, tunnel); err != nil {
			return err
		}
		change(&tunnel.Status)
		return p.Status().Update(t.Context(), tunnel)
	})
}

func edgeStatus(node string, gateways ...v1alpha1.EdgeGatewayStatus) v1alpha1.EdgeStatus {
	return v1alpha1.EdgeStatus{
		NodeID: model.NodeID(
			node,
		), Host: "host-of-" + node, EnrolledAt: metav1.Now(), CertificateNotAfter: metav1.NewTime(time.Now().Add(time.Hour)),
		Gateways: gateways, Version: "v1.2.3",
	}
}

func TestEdgeList(t *testing.T) {
	p := newPerson(t)
	a, b := model.NewNodeName(), model.NewNodeName()
	key := serve(
		t,
		p,
		edgeStatus(
			a, v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2},
			v1alpha1.EdgeGatewayStatus{Name: "gateway-1", Tunnels: 3},
		),
	)
	other := serve(t, p, edgeStatus(b))
	line := func(out, node string) string {
		for l := range strings.Lines(out) {
			if strings.Contains(l, node) {
				return strings.Join(strings.Fields(l), " ")
			}
		}
		return ""
	}
	all := p.must(t, []string{"NODE", a, b}, "edge", "list", "-A")
	if got, want := line(all, a), fmt.Sprintf("%s c1 - edge %s host-of-%s connected "+
		"gateway-0:2,gateway-1:3", key.Namespace, a, a); !strings.HasPrefix(
		got,
		want,
	) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := line(all, b); !strings.Contains(got, " away - ") || !strings.HasSuffix(got, "v1.2.3") {
		t.Errorf("got %q", got)
	}
	if out := p.must(t, []string{a}, "edge", "list", "-n", key.Namespace); strings.Contains(out, b) {
		t.Error("an edge of another namespace is listed")
	}
	p.must(t, []string{b}, "edge", "list", "-n", other.Namespace, "c1")
	p.mustNot(t, "Tunnel c2 not found", "edge", "list", "-n", other.Namespace, "c2")
}

func TestEdgeRevoke(t *testing.T) {
	p := newPerson(t)
	node, other := model.NewNodeName(), model.NewNodeName()
	tunnels := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	key := serve(t, p, edgeStatus(node, tunnels), edgeStatus(other, tunnels))
	p.mustNot(t, "gateway-0:2", "edge", "revoke", node, "--timeout=3s", nowhere)
	ended := make(chan string, 1)
	go func() {
		// running the command again continues to wait
		out, err := p.does(t, "edge", "revoke", node, "--timeout=20s", nowhere)
		if err == nil || !strings.Contains(err.Error(), notProven) {
			t.Errorf("without an answer of any gateway it claims success: %v", err)
		}
		ended <- out
	}()
	setStatus(t, p, key, func(s *v1alpha1.TunnelStatus) {
		for i := range s.Edges {
			if s.Edges[i].NodeID == model.NodeID(node) {
				at := metav1.Now()
				s.Edges[i].Gateways, s.Edges[i].CutAt = nil, &at
			}
		}
	})
	if out := <-ended; !strings.Contains(out, "no gateway has a tunnel of it after ") {
		t.Error(out)
	}
	tunnel := &v1alpha1.Tunnel{}
	if err := p.Get(t.Context(), key, tunnel); err != nil {
		t.Fatal(err)
	}
	if len(tunnel.Spec.RevokedEdges) != 1 || tunnel.Spec.RevokedEdges[0] != node ||
		recordOf(tunnel, node).RevokedAt == nil ||
		recordOf(tunnel, other).RevokedAt != nil {
		t.Errorf("spec %v, edges %+v", tunnel.Spec.RevokedEdges, tunnel.Status.Edges)
	}
	p.must(t, []string{"revoked"}, "edge", "list", "-n", key.Namespace)
}

// nowhere is an xds-server that does not answer.
const nowhere = "--xds-server=127.0.0.1:1"

func TestEdgeRevokeRejects(t *testing.T) {
	p := newPerson(t)
	node := model.NewNodeName()
	first, second := serve(t, p, edgeStatus(node)), serve(t, p, edgeStatus(node))
	p.mustNot(t, "no Tunnel has an edge edge-nobody on record", "edge", "revoke", "edge-nobody")
	p.mustNot(t, "in namespace "+first.Namespace, "edge", "revoke", "edge-nobody", "-n", first.Namespace)
	p.mustNot(t, "node name", "edge", "revoke", "CN=edge-a")
	p.mustNot(t, "several Tunnels", "edge", "revoke", node)
	p.mustNot(t, "--cluster needs --namespace", "edge", "revoke", node, "--cluster=c1")
	p.mustNot(t, "reading Tunnel", "edge", "revoke", node, "--cluster=c2", "-n", second.Namespace)
	// The edge has no recorded tunnel and others have, but no gateway has reported that since the revocation.
	p.mustNot(t, "it is not known whether", "edge", "revoke", node, "--cluster=c1", "-n", second.Namespace,
		"--timeout=3s", nowhere)
	p.mustNot(t, notProven, "edge", "revoke", "edge-lost", "--cluster=c1", "-n", second.Namespace, "--timeout=3s", nowhere)
}

// notProven is the error of a revocation while a gateway may still have a connection of the edge.
const notProven = "not all gateways have proven that the edge's connections are closed"

// recordOf returns the status of an edge in a Tunnel, or nil.
func recordOf(tunnel *v1alpha1.Tunnel, node string) *v1alpha1.EdgeStatus {
	for i := range tunnel.Status.Edges {
		if tunnel.Status.Edges[i].NodeID == model.NodeID(node) {
			return &tunnel.Status.Edges[i]
		}
	}
	return nil
}
