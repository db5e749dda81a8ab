package kubernetes_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
)

func TestPermissions(t *testing.T) {
	tests := map[string]struct {
		what     authorizationv1.ResourceAttributes
		accounts []string // of all ServiceAccounts
	}{
		"lists Clusters": {
			authorizationv1.ResourceAttributes{Verb: "list", Group: "cluster.x-k8s.io", Resource: "clusters"},
			[]string{"controller", "xds-server"},
		},
		"lists networks": {
			authorizationv1.ResourceAttributes{Verb: "list", Group: "fairlead.dev", Resource: "remotenetworks"},
			[]string{"controller", "xds-server"},
		},
		"changes networks": {
			authorizationv1.ResourceAttributes{Verb: "patch", Group: "fairlead.dev", Resource: "remotenetworks"},
			[]string{"controller"},
		},
		"creates networks": {
			authorizationv1.ResourceAttributes{Verb: "create", Group: "fairlead.dev", Resource: "remotenetworks"}, nil,
		},
		"sets the owner of networks": { // see TestTheControllerMaySetOwners
			authorizationv1.ResourceAttributes{Verb: "delete", Group: "fairlead.dev", Resource: "remotenetworks"},
			[]string{"controller"},
		},
		"changes Clusters": {
			authorizationv1.ResourceAttributes{
				Verb:      "patch",
				Group:     "cluster.x-k8s.io",
				Resource:  "clusters",
				Namespace: "prod",
			},
			nil,
		},
		"writes the status of Clusters": {
			authorizationv1.ResourceAttributes{
				Verb:        "patch",
				Group:       "cluster.x-k8s.io",
				Resource:    "clusters",
				Subresource: "status",
				Namespace:   "prod",
			},
			[]string{"controller"},
		},
		"replaces the status of Clusters": {
			authorizationv1.ResourceAttributes{
				Verb:        "update",
				Group:       "cluster.x-k8s.io",
				Resource:    "clusters",
				Subresource: "status",
				Namespace:   "prod",
			},
			nil,
		},
		"watches Machines": {
			authorizationv1.ResourceAttributes{Verb: "watch", Group: "cluster.x-k8s.io", Resource: "machines"},
			[]string{"controller"},
		},
		"changes Machines": {
			authorizationv1.ResourceAttributes{
				Verb:      "patch",
				Group:     "cluster.x-k8s.io",
				Resource:  "machines",
				Namespace: "prod",
			},
			nil,
		},
		"deletes Machines": {
			authorizationv1.ResourceAttributes{
				Verb:      "delete",
				Group:     "cluster.x-k8s.io",
				Resource:  "machines",
				Namespace: "prod",
			},
			nil,
		},
		"writes the status of Machines": {
			authorizationv1.ResourceAttributes{
				Verb:        "patch",
				Group:       "cluster.x-k8s.io",
				Resource:    "machines",
				Subresource: "status",
				Namespace:   "prod",
			},
			[]string{"controller"},
		},
		"replaces the status of Machines": {
			authorizationv1.ResourceAttributes{
				Verb:        "update",
				Group:       "cluster.x-k8s.io",
				Resource:    "machines",
				Subresource: "status",
				Namespace:   "prod",
			},
			nil,
		},
		"watches Tunnels": {
			authorizationv1.ResourceAttributes{Verb: "watch", Group: "fairlead.dev", Resource: "tunnels"},
			[]string{"controller", "xds-server"},
		},
		"makes Tunnels": {
			authorizationv1.ResourceAttributes{Verb: "create", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod"},
			[]string{"controller"},
		},
		"chooses the id of Tunnels": {
			authorizationv1.ResourceAttributes{Verb: "set-id", Group: "fairlead.dev", Resource: "tunnels"},
			[]string{"controller"},
		},
		"removes Tunnels": {
			authorizationv1.ResourceAttributes{Verb: "delete", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod"},
			[]string{"controller"},
		},
		"writes the status of Tunnels": {
			authorizationv1.ResourceAttributes{Verb: "patch", Group: "fairlead.dev", Resource: "tunnels", Subresource: "status"},
			[]string{"controller"},
		},
		"reads the CA key": {
			authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Name: "fairlead-ca", Namespace: namespace},
			[]string{"controller"},
		},
		"reads the keys of CAs in use": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "secrets",
				Name:      "fairlead-ca-state",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"reads which tunnels have ended": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "configmaps",
				Name:      "fairlead-ended-tunnels",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"watches which tunnels have ended": {
			authorizationv1.ResourceAttributes{
				Verb:      "watch",
				Resource:  "configmaps",
				Name:      "fairlead-ended-tunnels",
				Namespace: namespace,
			},
			[]string{"xds-server"},
		},
		"reads how far a rollout is": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "configmaps",
				Name:      "fairlead-rollout",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"watches how far a rollout is": {
			authorizationv1.ResourceAttributes{
				Verb:      "watch",
				Resource:  "configmaps",
				Name:      "fairlead-rollout",
				Namespace: namespace,
			},
			[]string{"xds-server"},
		},
		"decides about rollouts": {
			authorizationv1.ResourceAttributes{
				Verb:      "update",
				Resource:  "configmaps",
				Name:      "fairlead-rollout",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"patches the record of rollouts": {
			authorizationv1.ResourceAttributes{
				Verb:      "patch",
				Resource:  "configmaps",
				Name:      "fairlead-rollout",
				Namespace: namespace,
			},
			nil,
		},
		"removes the record of rollouts": {
			authorizationv1.ResourceAttributes{
				Verb:      "delete",
				Resource:  "configmaps",
				Name:      "fairlead-rollout",
				Namespace: namespace,
			},
			nil,
		},
		"writes the record of ended tunnels": {
			authorizationv1.ResourceAttributes{
				Verb:      "patch",
				Resource:  "configmaps",
				Name:      "fairlead-ended-tunnels",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"creates the Service for edges": {
			authorizationv1.ResourceAttributes{Verb: "create", Resource: "services", Namespace: namespace},
			[]string{"controller"},
		},
		"changes the Service for edges": {
			authorizationv1.ResourceAttributes{
				Verb: "patch", Resource: "services", Name: "gateway-public", Namespace: namespace,
			},
			[]string{"controller"},
		},
		"changes other Services": {
			authorizationv1.ResourceAttributes{
				Verb: "patch", Resource: "services", Name: "gateway", Namespace: namespace,
			},
			nil,
		},
		"sets the owner of the Service for edges": {
			authorizationv1.ResourceAttributes{
				Verb: "delete", Resource: "services", Name: "gateway-public", Namespace: namespace,
			},
			[]string{"controller"},
		},
		"removes other Services": {
			authorizationv1.ResourceAttributes{
				Verb: "delete", Resource: "services", Name: "gateway", Namespace: namespace,
			},
			nil,
		},
		"creates Services elsewhere": {
			authorizationv1.ResourceAttributes{Verb: "create", Resource: "services", Namespace: "prod"},
			nil,
		},
		"reads the gateway token": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "secrets",
				Name:      "fairlead-gateway-bootstrap",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"reads kubeconfigs": {
			authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Name: "c1-kubeconfig", Namespace: "prod"},
			[]string{"controller"},
		},
		"lists all Secrets": {
			authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"},
			[]string{"controller"},
		},
		"removes Secrets by the dozen": {
			authorizationv1.ResourceAttributes{Verb: "deletecollection", Resource: "secrets", Namespace: "prod"},
			nil,
		},
		"reads the trust bundle": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "configmaps",
				Name:      "fairlead-installation",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"watches the trust bundle": {
			authorizationv1.ResourceAttributes{
				Verb:      "watch",
				Resource:  "configmaps",
				Name:      "fairlead-installation",
				Namespace: namespace,
			},
			[]string{"controller", "xds-server"},
		},
		"changes the trust bundle": {
			authorizationv1.ResourceAttributes{
				Verb:      "patch",
				Resource:  "configmaps",
				Name:      "fairlead-installation",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"reads other ConfigMaps": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "configmaps",
				Name:      "fairlead-settings",
				Namespace: namespace,
			},
			nil,
		},
		"reads ConfigMaps elsewhere": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Resource:  "configmaps",
				Name:      "fairlead-installation",
				Namespace: "prod",
			},
			nil,
		},
		"requests certificates": {
			authorizationv1.ResourceAttributes{
				Verb:     "create",
				Group:    "certificates.k8s.io",
				Resource: "certificatesigningrequests",
			},
			[]string{"xds-server"},
		},
		"watches requests for certificates": {
			authorizationv1.ResourceAttributes{
				Verb:     "watch",
				Group:    "certificates.k8s.io",
				Resource: "certificatesigningrequests",
			},
			[]string{"controller", "xds-server"},
		},
		"removes requests for certificates": {
			authorizationv1.ResourceAttributes{
				Verb:     "delete",
				Group:    "certificates.k8s.io",
				Resource: "certificatesigningrequests",
			},
			nil,
		},
		"reads requests for certificates": {
			authorizationv1.ResourceAttributes{
				Verb:     "get",
				Group:    "certificates.k8s.io",
				Resource: "certificatesigningrequests",
			},
			[]string{"controller"},
		},
		"lists requests for certificates": {
			authorizationv1.ResourceAttributes{
				Verb:     "list",
				Group:    "certificates.k8s.io",
				Resource: "certificatesigningrequests",
			},
			[]string{"controller"},
		},
		"lists which tunnels have ended": {
			authorizationv1.ResourceAttributes{
				Verb:      "list",
				Resource:  "configmaps",
				Name:      "fairlead-ended-tunnels",
				Namespace: namespace,
			},
			[]string{"xds-server"},
		},
		"reads how many gateways there are": {
			authorizationv1.ResourceAttributes{
				Verb:      "get",
				Group:     "apps",
				Resource:  "statefulsets",
				Name:      "gateway",
				Namespace: namespace,
			},
			nil,
		},
		"writes the record as an xds-server": {
			authorizationv1.ResourceAttributes{
				Verb:        "update",
				Group:       "fairlead.dev",
				Resource:    "tunnels",
				Subresource: "status",
			},
			nil,
		},
		"approves requests": {
			authorizationv1.ResourceAttributes{
				Verb:        "update",
				Group:       "certificates.k8s.io",
				Resource:    "certificatesigningrequests",
				Subresource: "approval",
			},
			[]string{"controller"},
		},
		"fills in certificates": {
			authorizationv1.ResourceAttributes{
				Verb:        "update",
				Group:       "certificates.k8s.io",
				Resource:    "certificatesigningrequests",
				Subresource: "status",
			},
			[]string{"controller"},
		},
		"approves for edges": {
			authorizationv1.ResourceAttributes{
				Verb:     "approve",
				Group:    "certificates.k8s.io",
				Resource: "signers",
				Name:     "fairlead.dev/edge",
			},
			[]string{"controller"},
		},
		"signs for gateways": {
			authorizationv1.ResourceAttributes{
				Verb:     "sign",
				Group:    "certificates.k8s.io",
				Resource: "signers",
				Name:     "fairlead.dev/gateway",
			},
			[]string{"controller"},
		},
		"signs for xds-servers": {
			authorizationv1.ResourceAttributes{
				Verb:     "sign",
				Group:    "certificates.k8s.io",
				Resource: "signers",
				Name:     "fairlead.dev/control",
			},
			[]string{"controller"},
		},
		"signs for clients of the apiserver": {
			authorizationv1.ResourceAttributes{
				Verb:     "sign",
				Group:    "certificates.k8s.io",
				Resource: "signers",
				Name:     "kubernetes.io/kube-apiserver-client",
			},
			nil,
		},
		"approves for other signers": {
			authorizationv1.ResourceAttributes{
				Verb:     "approve",
				Group:    "certificates.k8s.io",
				Resource: "signers",
				Name:     "example.org/edge",
			},
			nil,
		},
		"reviews tokens": {
			authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
			[]string{"xds-server"},
		},
		"makes tokens": {
			authorizationv1.ResourceAttributes{
				Verb:        "create",
				Resource:    "serviceaccounts",
				Subresource: "token",
				Name:        "controller",
				Namespace:   namespace,
			},
			nil,
		},
		"impersonates another user": {
			authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users"},
			nil,
		},
		"writes events": {
			authorizationv1.ResourceAttributes{Verb: "create", Group: "events.k8s.io", Resource: "events", Namespace: "prod"},
			[]string{"controller"},
		},
		"writes events of leader election": {
			authorizationv1.ResourceAttributes{Verb: "create", Resource: "events", Namespace: namespace},
			[]string{"controller"},
		},
		"holds its lease": {
			authorizationv1.ResourceAttributes{
				Verb:      "update",
				Group:     "coordination.k8s.io",
				Resource:  "leases",
				Name:      "fairlead-controller",
				Namespace: namespace,
			},
			[]string{"controller"},
		},
		"takes another lease": {
			authorizationv1.ResourceAttributes{
				Verb:      "update",
				Group:     "coordination.k8s.io",
				Resource:  "leases",
				Name:      "another",
				Namespace: namespace,
			},
			nil,
		},
		"reads the trust bundle of the webhook": {
			authorizationv1.ResourceAttributes{
				Verb:     "get",
				Group:    "admissionregistration.k8s.io",
				Resource: "mutatingwebhookconfigurations",
				Name:     "fairlead-kubeconfigs",
			},
			[]string{"controller"},
		},
		"writes the trust bundle of the webhook": {
			authorizationv1.ResourceAttributes{
				Verb:     "patch",
				Group:    "admissionregistration.k8s.io",
				Resource: "mutatingwebhookconfigurations",
				Name:     "fairlead-kubeconfigs",
			},
			[]string{"controller"},
		},
		"changes another webhook": {
			authorizationv1.ResourceAttributes{
				Verb:     "patch",
				Group:    "admissionregistration.k8s.io",
				Resource: "mutatingwebhookconfigurations",
				Name:     "another",
			},
			nil,
		},
		"makes webhooks": {
			authorizationv1.ResourceAttributes{
				Verb:     "create",
				Group:    "admissionregistration.k8s.io",
				Resource: "mutatingwebhookconfigurations",
			},
			nil,
		},
		"lists all webhooks": {
			authorizationv1.ResourceAttributes{
				Verb:     "list",
				Group:    "admissionregistration.k8s.io",
				Resource: "mutatingwebhookconfigurations",
			},
			nil,
		},
		"reads what namespaces accept": {
			authorizationv1.ResourceAttributes{Verb: "watch", Resource: "namespaces"},
			[]string{"controller"},
		},
		"changes what namespaces accept": {
			authorizationv1.ResourceAttributes{Verb: "patch", Resource: "namespaces", Name: "prod"},
			nil,
		},
		"follows how many gateways there are": {
			authorizationv1.ResourceAttributes{
				Verb:      "watch",
				Group:     "apps",
				Resource:  "statefulsets",
				Name:      "gateway",
				Namespace: namespace,
			},
			[]string{"xds-server"},
		},
		"writes the number of gateways": {
			authorizationv1.ResourceAttributes{
				Verb:      "patch",
				Group:     "apps",
				Resource:  "statefulsets",
				Name:      "gateway",
				Namespace: namespace,
			},
			nil,
		},
		"watches another StatefulSet": {
			authorizationv1.ResourceAttributes{
				Verb:      "watch",
				Group:     "apps",
				Resource:  "statefulsets",
				Name:      "another",
				Namespace: namespace,
			},
			nil,
		},
		"starts Pods": {
			authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: namespace},
			nil,
		},
		"gives itself a role": {
			authorizationv1.ResourceAttributes{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
			nil,
		},
	}
	admin := apiserver(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, account := range []string{"controller", "xds-server", "gateway", "default"} {
				if got, want := allowed(t, admin, account, tc.what), slices.Contains(tc.accounts, account); got != want {
					t.Errorf("%s: %v, want %v", account, got, want)
				}
			}
		})
	}
}

func userOf(account string) string { return "system:serviceaccount:" + namespace + ":" + account }

// allowed queries the apiserver's authorizer.
func allowed(t *testing.T, admin client.Client, account string, what authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: userOf(account), ResourceAttributes: &what,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}}
	if err := admin.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// TestTheXDSServerCannotSign tries how an attacker from the internet could get a certificate.
func TestTheXDSServerCannotSign(t *testing.T) {
	admin := apiserver(t)
	xdsServer, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), userOf("xds-server")))
	if err != nil {
		t.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: "fairlead.dev/edge", Request: newCSR(t),
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
		},
	}
	if err := xdsServer.Create(t.Context(), csr); err != nil {
		t.Fatal(err)
	}
	approved := csr.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"},
	}
	if err := xdsServer.SubResource("approval").Update(t.Context(), approved); !apierrors.IsForbidden(err) {
		t.Errorf("approving: %v", err)
	}
	if err := admin.SubResource("approval").Update(t.Context(), approved); err != nil {
		t.Fatal(err)
	}
	approved.Status.Certificate = []byte("x")
	if err := xdsServer.Status().Update(t.Context(), approved); !apierrors.IsForbidden(err) {
		t.Errorf("signing: %v", err)
	}
	if err := xdsServer.List(t.Context(), &corev1.SecretList{}, client.InNamespace(namespace)); !apierrors.IsForbidden(
		err,
	) {
		t.Errorf("reading Secrets: %v", err)
	}
}

func newCSR(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
