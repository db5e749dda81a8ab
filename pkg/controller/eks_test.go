package controller

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	eksHost, eksMovedHost = "0123456789abcdef.gr7.eu-west-1.eks.amazonaws.com",
		"fedcba9876543210.gr7.eu-west-1.eks.amazonaws.com"
	eksEndpoint, eksMoved = "https://" + eksHost, "https://" + eksMovedHost
	eksName               = "another_name" // the name of the cluster in AWS
)

// awsProvider is the code of Cluster API's own AWS provider, which writes the kubeconfigs of EKS: tools/capa.
type awsProvider struct {
	*writersWorld
	program string
	config  string // kubeconfig of the management cluster
	ca      string
}

// TestAKubeconfigKeepsItsTunnelDespiteTheAWSProvider has the provider for EKS write at each reconciliation, with its
// own code, in each mode.
func TestAKubeconfigKeepsItsTunnelDespiteTheAWSProvider(t *testing.T) {
	program := awsProgram(t)
	m := apiserver(t)
	startReplica(t, m)
	if _, err := envtest.InstallCRDs(
		server.Config(t), envtest.CRDInstallOptions{Paths: []string{filepath.Join(filepath.Dir(program), "capa-crd.yaml")}},
	); err != nil {
		t.Fatal(err)
	}
	for _, mode := range controllertest.EveryMode {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			aws := newAWSProvider(t, newWritersWorld(t, m, labelledNamespace(t, m, "yes"), mode), program)
			aws.reconcile(eksEndpoint) // creates
			secret, want := aws.ledAway(eksEndpoint)
			seen := watchSecret(t, m, secret)
			for range 3 {
				aws.reconcile(eksEndpoint)
				aws.check(next(t, seen).secret, secret, want, eksEndpoint)
			}
			aws.reconcile(eksMoved)
			want.Server = strings.ReplaceAll(want.Server, eksHost, eksMovedHost)
			want.TLSServerName = strings.ReplaceAll(want.TLSServerName, eksHost, eksMovedHost)
			aws.check(next(t, seen).secret, secret, want, eksMoved)

			aws.checkOptsOut(eksMoved)
			aws.reconcile(eksEndpoint)
			got, err := kubeconfig.Read(controllertest.Read(t, m, aws.secret()), aws.cluster.Name)
			if back := (kubeconfig.Endpoint{Server: eksEndpoint}); err != nil || got != back {
				t.Errorf("what the provider writes then leads %v, %v", got, err)
			}
		})
	}
}

// awsProgram is the provider's code as a program.
func awsProgram(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs("../../bin/capa-reconcile")
	if err == nil {
		_, err = os.Stat(program)
	}
	switch {
	case err != nil && os.Getenv("REAL_PARTS_REQUIRED") != "":
		t.Fatalf("no AWS provider: run `make tools`: %v", err)
	case err != nil:
		t.Skipf("no AWS provider, which `make tools` builds: %v", err)
	}
	return program
}

func newAWSProvider(t *testing.T, w *writersWorld, program string) *awsProvider {
	t.Helper()
	controllertest.Create(t, w.m, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "AWSManagedControlPlane",
		"metadata": map[string]any{"namespace": w.cluster.Namespace, "name": w.cluster.Name},
		"spec": map[string]any{
			"eksClusterName": eksName, "region": "eu-west-1", "endpointAccess": map[string]any{"private": true, "public": false},
			"network": map[string]any{"subnets": []any{
				map[string]any{"id": "subnet-a", "availabilityZone": "eu-west-1a"},
				map[string]any{"id": "subnet-b", "availabilityZone": "eu-west-1b"},
			}},
		},
	}})
	dir, config := t.TempDir(), server.Config(t)
	p := &awsProvider{
		writersWorld: w, program: program, config: filepath.Join(dir, "kubeconfig"), ca: filepath.Join(dir, "ca.crt"),
	}
	management := clientcmdapi.NewConfig()
	management.Clusters["m"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	management.AuthInfos["m"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
	}
	management.Contexts["m"] = &clientcmdapi.Context{Cluster: "m", AuthInfo: "m"}
	management.CurrentContext = "m"
	if err := clientcmd.WriteToFile(*management, p.config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.ca, w.authority.Data[corev1.TLSCertKey], 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// reconcile runs the provider's code once, while AWS reports that the apiserver exists.
func (p *awsProvider) reconcile(endpoint string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(
		ctx, p.program, "-kubeconfig", p.config, "-namespace", p.cluster.Namespace, "-name", p.cluster.Name, "-endpoint",
		endpoint, "-ca", p.ca,
	)
	if out, err := command.CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}

// ledAway waits until the kubeconfig has the endpoint of the mode, and returns it.
func (p *awsProvider) ledAway(original string) (secret *corev1.Secret, endpoint kubeconfig.Endpoint) {
	p.t.Helper()
	secret = p.secret()
	controllertest.Eventually(p.t, func() (err error) {
		if err := p.m.Get(p.t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if endpoint, err = kubeconfig.Read(secret, p.cluster.Name); err == nil &&
			endpoint == (kubeconfig.Endpoint{Server: original}) {
			err = errors.New("it is the provider's still")
		}
		return err
	})
	if want := p.want(original); endpoint.Server != want.Server || endpoint.ProxyURL != want.ProxyURL {
		p.t.Fatalf("it leads %v, want %v", endpoint, want)
	}
	return secret, endpoint
}

// check checks one version of the Secret that a reader observed after a write, and stores it.
func (p *awsProvider) check(now, before *corev1.Secret, want kubeconfig.Endpoint, original string) {
	p.t.Helper()
	got, err := kubeconfig.Read(now, p.cluster.Name)
	if err != nil || got != want || now.Annotations[v1alpha1.OriginalServerAnnotation] != original {
		p.t.Fatalf(
			"a reader saw %v, %v, original %q; want %v, %q", got, err, now.Annotations[v1alpha1.OriginalServerAnnotation], want,
			original,
		)
	}
	if string(now.Data["token-file"]) == string(before.Data["token-file"]) {
		p.t.Error("the token is the one before: the provider has not written")
	}
	// The provider does not write a Secret that it no longer owns.
	if len(now.OwnerReferences) != 1 || now.OwnerReferences[0].Kind != "AWSManagedControlPlane" ||
		now.Type != clusterv1.ClusterSecretType {
		p.t.Errorf("type %s, owners %v", now.Type, now.OwnerReferences)
	}
	if relative, err := clientcmd.Load(now.Data["relative"]); err != nil || relative.Clusters[eksName].Server != original {
		p.t.Errorf("the provider's second kubeconfig is not as it wrote it: %v", err)
	}
	now.DeepCopyInto(before)
}
