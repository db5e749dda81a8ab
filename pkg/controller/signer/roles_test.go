package signer

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// roles are the Tunnels of a Cluster with a network: each has its own id and token.
type roles struct {
	cluster *clusterv1.Cluster
	network *v1alpha1.RemoteNetwork
	tunnels map[string]*v1alpha1.Tunnel // by name
}

func newRoles() roles {
	cluster, tunnel := controllertest.Served("c1", 1000)
	network := &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "oslo", UID: types.UID("uid-of-oslo")},
		Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: "c1"},
	}
	r := roles{cluster: cluster, network: network, tunnels: map[string]*v1alpha1.Tunnel{"c1": tunnel}}
	for name, change := range map[string]func(*v1alpha1.Tunnel){
		"oslo.network": func(t *v1alpha1.Tunnel) {
			t.Spec.Network = "oslo"
			t.OwnerReferences = []metav1.OwnerReference{
				*metav1.NewControllerRef(network, v1alpha1.GroupVersion.WithKind("RemoteNetwork")),
			}
		},
		"c1.egress": func(t *v1alpha1.Tunnel) { t.Spec.EgressOf = "c1" },
	} {
		other := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, OwnerReferences: slices.Clone(tunnel.OwnerReferences),
		}, Spec: v1alpha1.TunnelSpec{ID: model.NewID()}}
		change(other)
		r.tunnels[name] = other
	}
	for name, tunnel := range r.tunnels {
		tunnel.Status.ID, tunnel.Status.Served = tunnel.Spec.ID, &v1alpha1.ServedStatus{ClusterUID: cluster.UID}
		tunnel.Status.Tokens = []v1alpha1.TokenStatus{{
			SHA256: enrol.HashToken(name), MaxUses: 9, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
		}}
	}
	return r
}

// request returns a request of a role by the token of a Tunnel, or without one: a renewal.
func (r roles) request(role model.Role, tunnel, token string) *request {
	q := &request{
		subject: model.Subject{Role: role, Node: "node-a", ID: r.tunnels[tunnel].Spec.ID},
		tunnel:  model.Key{Namespace: "prod", Name: tunnel}, notAfter: time.Now().Add(time.Hour),
	}
	if token != "" {
		q.tokenHash = enrol.HashToken(token)
	}
	return q
}

// TestATunnelHasOneRole requests a leaf of each role for each Tunnel, by each token and as a renewal.
func TestATunnelHasOneRole(t *testing.T) {
	r := newRoles()
	roleOf := map[string]model.Role{"c1": model.RoleEdge, "oslo.network": model.RoleEdge, "c1.egress": model.RoleEgress}
	for tunnel, right := range roleOf {
		for _, role := range []model.Role{model.RoleEdge, model.RoleEgress} {
			for _, token := range []string{"", "c1", "oslo.network", "c1.egress"} {
				want := ""
				switch {
				case role != right:
					want = ReasonWrongRole
				case token != "" && token != tunnel:
					want = ReasonUnknownToken
				}
				if got := refusalOf(t, r, r.request(role, tunnel, token)); got != want {
					t.Errorf("%s for Tunnel %s by the token of %q: %q, want %q", role, tunnel, token, got, want)
				}
			}
		}
	}
}

// TestATunnelEndsWithItsOwner: the Cluster of an egress Tunnel is not the one with its name, and a network may be
// replaced by another one with the same name.
func TestATunnelEndsWithItsOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		tunnel string
		role   model.Role
		change func(*roles)
	}{
		"another Cluster": {
			"c1.egress", model.RoleEgress, func(r *roles) { r.cluster.UID = "another" },
		},
		"another network": {
			"oslo.network", model.RoleEdge, func(r *roles) { r.network.UID = "another" },
		},
		"no Cluster of the network": {
			"oslo.network", model.RoleEdge, func(r *roles) { r.network.Spec.ClusterName = "c2" },
		},
	} {
		r := newRoles()
		tc.change(&r)
		if got := refusalOf(t, r, r.request(tc.role, tc.tunnel, tc.tunnel)); got != ReasonTunnelEnded {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// refusalOf returns the reason for which a request is refused; empty: it is admitted.
func refusalOf(t *testing.T, r roles, q *request) string {
	t.Helper()
	api := controllertest.FakeAPI(
		t, r.cluster, r.network, r.tunnels["c1"], r.tunnels["oslo.network"], r.tunnels["c1.egress"],
	)
	reconciler := &Reconciler{Deps: reconciler.Deps{
		Config: controllertest.Config(), Client: api, Live: api, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}}
	err := reconciler.admitEdge(t.Context(), q)
	var no *refusal
	if errors.As(err, &no) {
		return no.reason
	}
	if err != nil {
		t.Fatal(err)
	}
	return ""
}

// TestALeafOfAnApiserverIsForClientsOnly, so that it cannot impersonate a gateway or an edge.
func TestALeafOfAnApiserverIsForClientsOnly(t *testing.T) {
	r := newRoles()
	authority, err := certs.NewCA("test CA", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	csr := controllertest.EdgeRequest(t, "prod/c1.egress")
	csr.Name, csr.Spec.SignerName = "request", v1alpha1.SignerEgress
	csr.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	csr.Annotations[v1alpha1.RequestTunnelIDAnnotation] = r.tunnels["c1.egress"].Spec.ID
	q, err := readRequest(controllertest.Config(), csr, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	api := controllertest.FakeAPI(t, csr)
	signer := &Reconciler{Deps: reconciler.Deps{
		Config: controllertest.Config(), Client: api, Live: api, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}}
	if err := signer.sign(t.Context(), csr, &ca.Issuer{CA: authority}, q); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(csr.Status.Certificate)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	name := controllertest.Config().Domain.EgressID(r.tunnels["c1.egress"].Spec.ID)
	if !slices.Equal(leaf.DNSNames, []string{name}) ||
		!slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		t.Errorf("it has the names %v and the usages %v", leaf.DNSNames, leaf.ExtKeyUsage)
	}
}
