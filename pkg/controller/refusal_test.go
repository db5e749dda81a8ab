package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// claimant creates a Tunnel with one token that claims the id of another one. recorded is the id in its own record:
// none, or one that it does not claim.
func claimant(t *testing.T, m *management, recorded string) *v1alpha1.Tunnel {
	t.Helper()
	id := model.NewID()
	holder := claims(t, m, id)
	controllertest.Eventually(t, func() error {
		if got := controllertest.Read(t, m, holder).HeldID(); got != id {
			return fmt.Errorf("the holder has the id %q", got)
		}
		return nil
	})
	claimant := claims(t, m, id)
	controllertest.Eventually(t, func() error {
		if controllertest.Message(controllertest.Read(t, m, claimant), v1alpha1.ConditionAccepted) == "" {
			return errors.New("the controller has not decided about the claim")
		}
		return nil
	})
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(claimant), claimant); err != nil {
			return err
		}
		claimant.Status.ID, claimant.Status.Tokens = recorded, []v1alpha1.TokenStatus{usableToken()}
		return m.Status().Update(t.Context(), claimant)
	})
	return claimant
}

func TestTheSignerRejectsInvalidRequests(t *testing.T) {
	tests := map[string]struct {
		new    func(*testing.T, *management) *v1alpha1.Tunnel // nil: pausedTunnel
		tunnel func(*testing.T, *management, *v1alpha1.Tunnel)
		csr    func(*certificatesv1.CertificateSigningRequest)
		want   string
	}{
		"an unknown tunnel": {
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				r.Annotations[v1alpha1.RequestTunnelAnnotation] += "-not"
			},
			want: signer.ReasonUnknownTunnel,
		},
		"the id of an earlier tunnel": {
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				r.Annotations[v1alpha1.RequestTunnelIDAnnotation] = model.NewID()
			},
			want: signer.ReasonTunnelEnded,
		},
		"a renewal for an earlier tunnel": {
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				r.Annotations[v1alpha1.RequestTunnelIDAnnotation] = model.NewID()
				delete(r.Annotations, v1alpha1.RequestTokenAnnotation)
			},
			want: signer.ReasonTunnelEnded,
		},
		"a Tunnel that claims an id which is not recorded as its own": {
			new: func(t *testing.T, m *management) *v1alpha1.Tunnel {
				t.Helper()
				return claimant(t, m, "")
			},
			want: signer.ReasonNotHeld,
		},
		"a renewal by a Tunnel that claims another id than is recorded": {
			new: func(t *testing.T, m *management) *v1alpha1.Tunnel {
				t.Helper()
				return claimant(t, m, model.NewID())
			},
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				delete(r.Annotations, v1alpha1.RequestTokenAnnotation)
			},
			want: signer.ReasonNotHeld,
		},
		"a token of no record": {
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				r.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken("another")
			},
			want: signer.ReasonUnknownToken,
		},
		"a token that has expired": {
			tunnel: func(t *testing.T, m *management, tunnel *v1alpha1.Tunnel) {
				t.Helper()
				setTokens(
					t, m, tunnel,
					v1alpha1.TokenStatus{
						SHA256: enrol.HashToken(controllertest.TestToken), ExpiresAt: metav1.NewTime(time.Now().Add(-time.Second)),
						MaxUses: 3,
					},
				)
			},
			want: signer.ReasonTokenExpired,
		},
		"a token that is used up": {
			tunnel: func(t *testing.T, m *management, tunnel *v1alpha1.Tunnel) {
				t.Helper()
				setTokens(
					t, m, tunnel,
					v1alpha1.TokenStatus{
						SHA256: enrol.HashToken(controllertest.TestToken), ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
						MaxUses: 3, Uses: 3,
					},
				)
			},
			want: signer.ReasonTokenUsedUp,
		},
		"a tunnel whose Cluster is another's": {
			tunnel: func(t *testing.T, m *management, tunnel *v1alpha1.Tunnel) {
				t.Helper()
				// The xds-server does not serve a Tunnel without an owner either.
				controllertest.Edit(t, m, tunnel, func(tunnel *v1alpha1.Tunnel) { tunnel.OwnerReferences = nil })
			},
			want: signer.ReasonTunnelEnded,
		},
		"an edge that is revoked": {
			tunnel: func(t *testing.T, m *management, tunnel *v1alpha1.Tunnel) {
				t.Helper()
				controllertest.Edit(t, m, tunnel, func(tunnel *v1alpha1.Tunnel) {
					tunnel.Spec.RevokedEdges = []string{"edge-other", controllertest.TestNode}
				})
			},
			want: signer.ReasonRevoked,
		},
		"an edge that would be a gateway": {
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				r.Annotations[v1alpha1.RequestNodeAnnotation] = "gateway-0"
			},
			want: signer.ReasonInvalidName,
		},
		"a gateway that would be an edge": {
			csr:  func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = v1alpha1.SignerGateway },
			want: signer.ReasonInvalidName,
		},
		"a usage that is not the profile's": {
			csr: func(r *certificatesv1.CertificateSigningRequest) {
				r.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageCodeSigning}
			},
			want: signer.ReasonWrongUsage,
		},
	}
	m := apiserver(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.new == nil {
				tc.new = pausedTunnel
			}
			tunnel := tc.new(t, m)
			if tc.tunnel != nil {
				tc.tunnel(t, m, tunnel)
			}
			csr := controllertest.EdgeRequest(t, tunnel.Namespace+"/c1")
			csr.Annotations[v1alpha1.RequestTunnelIDAnnotation] = tunnel.Spec.ID
			if tc.csr != nil {
				tc.csr(csr)
			}
			before := controllertest.Read(t, m, tunnel).Status
			csr = answered(t, m, csr)
			if got := denialOf(csr); got != tc.want || len(csr.Status.Certificate) != 0 {
				t.Errorf("got reason %q and %d bytes of certificate, want %s", got, len(csr.Status.Certificate), tc.want)
			}
			if after := controllertest.Read(t, m, tunnel).Status; len(after.Edges) != 0 ||
				after.Tokens[0].Uses != before.Tokens[0].Uses {
				t.Errorf("the refusal was noted as a use: %+v", after)
			}
		})
	}
}

func TestTheSignerRejectsRequestsOfOtherUsers(t *testing.T) {
	m := apiserver(t)
	csr := controllertest.EdgeRequest(t, pausedTunnel(t, m).Namespace+"/c1")
	controllertest.Create(t, m, csr) // as an administrator; the apiserver overwrites spec.username
	controllertest.Eventually(t, func() error {
		if got := denialOf(controllertest.Read(t, m, csr)); got != signer.ReasonWrongUser {
			return fmt.Errorf("got reason %q", got)
		}
		return nil
	})
}

func TestTheSignerIgnoresOtherSigners(t *testing.T) {
	m := apiserver(t)
	foreign := controllertest.EdgeRequest(t, "")
	foreign.Spec.SignerName = "example.org/edge"
	controllertest.Create(t, m, foreign)
	answered(t, m, controllertest.EdgeRequest(t, pausedTunnel(t, m).Namespace+"/c1"))
	if now := controllertest.Read(t, m, foreign); len(now.Status.Conditions) != 0 || len(now.Status.Certificate) != 0 {
		t.Errorf("another signer's request was answered: %+v", now.Status)
	}
}

func TestAnEdgeOfAnEndedTunnelCannotRenew(t *testing.T) {
	m := apiserver(t)
	tunnel := pausedTunnel(t, m)
	answered(t, m, controllertest.EdgeRequest(t, tunnel.Namespace+"/c1"))
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: tunnel.Namespace, Name: "c1"}}
	if err := m.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	renewal := controllertest.EdgeRequest(t, tunnel.Namespace+"/c1")
	delete(renewal.Annotations, v1alpha1.RequestTokenAnnotation)
	// Whether the Tunnel is already gone depends on milliseconds.
	if got := denialOf(answered(t, m, renewal)); got != signer.ReasonTunnelEnded && got != signer.ReasonUnknownTunnel {
		t.Errorf("got reason %q", got)
	}
}
