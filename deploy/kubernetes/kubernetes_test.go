// Package kubernetes_test shows the manifests of this folder to a real kube-apiserver, and proves what each ServiceAccount
// can do and what it can't.
package kubernetes_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
)

const (
	root      = "../.."
	namespace = "fairlead-system"
)

// server has no CRDs but those of the manifests.
var server = kubetest.Server{Prepare: applyManifests}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// apiserver returns an administrator's client of a real kube-apiserver to which the manifests were applied.
func apiserver(t *testing.T) client.Client {
	t.Helper()
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return admin
}

func applyManifests(ctx context.Context, config *rest.Config) error {
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	built, err := build(ctx)
	if err != nil {
		return err
	}
	for _, o := range built {
		if err := admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test")); err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// build returns what `kubectl apply -k` would apply.
func build(ctx context.Context) ([]*unstructured.Unstructured, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(root, "bin/kubectl"), "kustomize", ".").Output()
	if err != nil {
		return nil, fmt.Errorf("building kustomization: %w", err)
	}
	return kubetest.Decode(out)
}

func TestEveryManifestIsApplied(t *testing.T) {
	kustomization, err := os.ReadFile("kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.yaml", "crd/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file != "kustomization.yaml" && !strings.Contains(string(kustomization), "- "+file+"\n") {
				t.Errorf("kustomization.yaml does not name %s", file)
			}
		}
	}
}

func TestPermissions(t *testing.T) {
	tests := map[string]struct {
		what authorizationv1.ResourceAttributes
		who  []string // of all ServiceAccounts
	}{
		"lists Clusters":                     {authorizationv1.ResourceAttributes{Verb: "list", Group: "cluster.x-k8s.io", Resource: "clusters"}, []string{"controller", "xds-server"}},
		"changes Clusters":                   {authorizationv1.ResourceAttributes{Verb: "patch", Group: "cluster.x-k8s.io", Resource: "clusters", Namespace: "prod"}, nil},
		"watches Tunnels":                    {authorizationv1.ResourceAttributes{Verb: "watch", Group: "fairlead.dev", Resource: "tunnels"}, []string{"controller", "xds-server"}},
		"makes Tunnels":                      {authorizationv1.ResourceAttributes{Verb: "create", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod"}, []string{"controller"}},
		"chooses the id of Tunnels":          {authorizationv1.ResourceAttributes{Verb: "set-id", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod"}, []string{"controller"}},
		"removes Tunnels":                    {authorizationv1.ResourceAttributes{Verb: "delete", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod"}, []string{"controller"}},
		"writes the status of Tunnels":       {authorizationv1.ResourceAttributes{Verb: "patch", Group: "fairlead.dev", Resource: "tunnels", Subresource: "status", Namespace: "prod"}, []string{"controller"}},
		"reads the CA key":                   {authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Name: "fairlead-ca", Namespace: namespace}, []string{"controller"}},
		"reads the gateway token":            {authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Name: "fairlead-gateway-bootstrap", Namespace: namespace}, []string{"controller"}},
		"reads kubeconfigs":                  {authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Name: "c1-kubeconfig", Namespace: "prod"}, []string{"controller"}},
		"lists all Secrets":                  {authorizationv1.ResourceAttributes{Verb: "list", Resource: "secrets"}, []string{"controller"}},
		"removes Secrets by the dozen":       {authorizationv1.ResourceAttributes{Verb: "deletecollection", Resource: "secrets", Namespace: "prod"}, nil},
		"reads the trust bundle":             {authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Name: "fairlead-installation", Namespace: namespace}, []string{"controller", "xds-server"}},
		"watches the trust bundle":           {authorizationv1.ResourceAttributes{Verb: "watch", Resource: "configmaps", Name: "fairlead-installation", Namespace: namespace}, []string{"controller", "xds-server"}},
		"changes the trust bundle":           {authorizationv1.ResourceAttributes{Verb: "patch", Resource: "configmaps", Name: "fairlead-installation", Namespace: namespace}, []string{"controller"}},
		"reads other ConfigMaps":             {authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Name: "fairlead-settings", Namespace: namespace}, nil},
		"reads ConfigMaps elsewhere":         {authorizationv1.ResourceAttributes{Verb: "get", Resource: "configmaps", Name: "fairlead-installation", Namespace: "prod"}, nil},
		"asks for certificates":              {authorizationv1.ResourceAttributes{Verb: "create", Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}, []string{"xds-server"}},
		"watches requests for certificates":  {authorizationv1.ResourceAttributes{Verb: "watch", Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}, []string{"controller", "xds-server"}},
		"removes requests for certificates":  {authorizationv1.ResourceAttributes{Verb: "delete", Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}, nil},
		"approves requests":                  {authorizationv1.ResourceAttributes{Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: "approval"}, []string{"controller"}},
		"fills in certificates":              {authorizationv1.ResourceAttributes{Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: "status"}, []string{"controller"}},
		"approves for edges":                 {authorizationv1.ResourceAttributes{Verb: "approve", Group: "certificates.k8s.io", Resource: "signers", Name: "fairlead.dev/edge"}, []string{"controller"}},
		"signs for gateways":                 {authorizationv1.ResourceAttributes{Verb: "sign", Group: "certificates.k8s.io", Resource: "signers", Name: "fairlead.dev/gateway"}, []string{"controller"}},
		"signs for xds-servers":              {authorizationv1.ResourceAttributes{Verb: "sign", Group: "certificates.k8s.io", Resource: "signers", Name: "fairlead.dev/control"}, []string{"controller"}},
		"signs for clients of the apiserver": {authorizationv1.ResourceAttributes{Verb: "sign", Group: "certificates.k8s.io", Resource: "signers", Name: "kubernetes.io/kube-apiserver-client"}, nil},
		"approves for other signers":         {authorizationv1.ResourceAttributes{Verb: "approve", Group: "certificates.k8s.io", Resource: "signers", Name: "example.org/edge"}, nil},
		"reviews tokens":                     {authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"}, []string{"xds-server"}},
		"makes tokens":                       {authorizationv1.ResourceAttributes{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Name: "controller", Namespace: namespace}, nil},
		"becomes somebody else":              {authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users"}, nil},
		"tells of events":                    {authorizationv1.ResourceAttributes{Verb: "create", Group: "events.k8s.io", Resource: "events", Namespace: "prod"}, []string{"controller"}},
		"tells of a new leader":              {authorizationv1.ResourceAttributes{Verb: "create", Resource: "events", Namespace: namespace}, []string{"controller"}},
		"holds its lease":                    {authorizationv1.ResourceAttributes{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Name: "fairlead-controller", Namespace: namespace}, []string{"controller"}},
		"takes another lease":                {authorizationv1.ResourceAttributes{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Name: "another", Namespace: namespace}, nil},
		"starts Pods":                        {authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: namespace}, nil},
		"gives itself a role":                {authorizationv1.ResourceAttributes{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, nil},
	}
	admin := apiserver(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, account := range []string{"controller", "xds-server", "gateway", "default"} {
				if got, want := allowed(t, admin, account, tc.what), slices.Contains(tc.who, account); got != want {
					t.Errorf("%s: %v, want %v", account, got, want)
				}
			}
		})
	}
}

func userOf(account string) string { return "system:serviceaccount:" + namespace + ":" + account }

// allowed asks the apiserver's authorizer.
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

// TestTheXDSServerCanNotSign tries what the internet's way to a certificate would be.
func TestTheXDSServerCanNotSign(t *testing.T) {
	admin := apiserver(t)
	xdsServer, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), userOf("xds-server")))
	if err != nil {
		t.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: "fairlead.dev/edge", Request: newCSR(t), Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
		},
	}
	if err := xdsServer.Create(t.Context(), csr); err != nil {
		t.Fatal(err)
	}
	approved := csr.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "x"}}
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
	if err := xdsServer.List(t.Context(), &corev1.SecretList{}, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
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

// workloads returns the Pod templates by the name of what they belong to.
func workloads(t *testing.T, admin client.Client) map[string]corev1.PodTemplateSpec {
	t.Helper()
	var deployments appsv1.DeploymentList
	var sets appsv1.StatefulSetList
	for _, list := range []client.ObjectList{&deployments, &sets} {
		if err := admin.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
	}
	templates := map[string]corev1.PodTemplateSpec{}
	for _, d := range deployments.Items {
		templates[d.Name] = d.Spec.Template
	}
	for _, s := range sets.Items {
		templates[s.Name] = s.Spec.Template
	}
	if len(templates) != 3 {
		t.Fatalf("there are %d workloads, want 3", len(templates))
	}
	return templates
}

func TestPodsAreRestricted(t *testing.T) {
	admin := apiserver(t)
	for name, template := range workloads(t, admin) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-0", Labels: template.Labels}, Spec: template.Spec}
		// The namespace enforces the restricted profile of Pod Security.
		if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range template.Spec.Containers {
			if !ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false) || c.LivenessProbe == nil || c.ReadinessProbe == nil {
				t.Errorf("%s: its root is writable, or it has no probes", name)
			}
		}
	}
}

// TestProgramsTakeTheirArguments shows the arguments in the manifests to the programs themselves.
func TestProgramsTakeTheirArguments(t *testing.T) {
	admin := apiserver(t)
	programs := map[string]string{"controller": "controller", "xds-server": "xds-server", "gateway": "gateway-agent"}
	for name, template := range workloads(t, admin) {
		arguments := append([]string{"run", root + "/cmd/" + programs[name]}, template.Spec.Containers[0].Args...)
		// Help is printed after all arguments were parsed, and instead of running.
		out, err := exec.CommandContext(t.Context(), "go", append(arguments, "--help")...).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("Usage:")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
