package networks

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

const (
	eksName = "payments"
	eksHost = "0123456789abcdef.gr7.eu-west-1.eks.amazonaws.com"
	// authenticator is where the stand-in for EKS' authenticator of tokens listens, beside the apiserver.
	authenticator = "127.0.0.1:21362"
	// AWS identities that the provider maps.
	mappedRole = "arn:aws:iam::000000000000:role/operators"
	mappedUser = "arn:aws:iam::000000000000:user/ada"
)

// eksCluster is an EKS cluster without a public endpoint: its apiserver is real, and only its VPC reaches it.
type eksCluster struct {
	*lab.Cluster
	fleet     *fleet
	vpc       *remote
	apiServer *kube.APIServer
}

// eks proves that Cluster API's provider for AWS writes the ConfigMap aws-auth into a private EKS cluster, with its own
// code, through an edge in the VPC.
func (f *fleet) eks(t *testing.T) {
	c := f.newEKS(t)
	that(t, "the provider for AWS does not reach a private EKS cluster without a tunnel", func(t *testing.T) {
		if out, err := c.reconcile(t.Context()); err == nil || !strings.Contains(out, "the network plugin") {
			t.Errorf("%v: %s", err, out)
		}
	})
	edge, err := c.vpc.AddEdgeHost(t.Context(), "edge", 2)
	must(t, err)
	must(t, edge.AddHost(eksHost, c.apiServer.Endpoint.Addr()))
	bootstrap, err := c.Bootstrap(t.Context())
	must(t, err)
	_, err = f.RunEdge(lab.EdgeSpec{Name: "vpc-edge", Site: edge.Namespace, Bootstraps: [][]byte{bootstrap}})
	must(t, err)
	that(t, "the provider for AWS writes aws-auth into a private EKS cluster through an edge", func(t *testing.T) {
		must(t, proc.Wait(t.Context(), 2*promise.Patience, func(ctx context.Context) error {
			if out, err := c.reconcile(ctx); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}))
		written := &corev1.ConfigMap{}
		at := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "aws-auth"}
		must(t, c.apiServer.Client.Get(t.Context(), at, written))
		roles, users := written.Data["mapRoles"], written.Data["mapUsers"]
		if !strings.Contains(roles, mappedRole) || !strings.Contains(users, mappedUser) {
			t.Errorf("aws-auth is %q", written.Data)
		}
	})
	that(t, "the provider for AWS can write again with its next token", func(t *testing.T) {
		must(t, c.apiServer.Client.Delete(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "aws-auth"},
		}))
		if out, err := c.reconcile(t.Context()); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		must(t, c.apiServer.Client.Get(t.Context(), client.ObjectKey{
			Namespace: metav1.NamespaceSystem, Name: "aws-auth",
		}, &corev1.ConfigMap{}))
	})
}

// newEKS starts the apiserver, and creates the objects of its Cluster.
func (f *fleet) newEKS(t *testing.T) *eksCluster {
	t.Helper()
	c := &eksCluster{fleet: f, vpc: newRemote(t, f.World, "vpc", "10.50.0.0/16")}
	c.Cluster = f.Cluster(types.NamespacedName{Namespace: world.Namespace, Name: eksName})
	site, err := c.vpc.AddMachine(t.Context(), "eks", 10)
	must(t, err)
	serveTokenReviews(t, site)
	config := f.File("eks-authenticator")
	must(t, os.WriteFile(config, []byte(`apiVersion: v1
kind: Config
clusters: [{name: authenticator, cluster: {server: "http://`+authenticator+`/authenticate"}}]
contexts: [{name: authenticator, context: {cluster: authenticator, user: ""}}]
current-context: authenticator
`), 0o600))
	etcd, err := kube.StartEtcd(t.Context(), f.Workspace, site.Namespace)
	must(t, err)
	c.apiServer, err = kube.StartAPIServer(t.Context(), f.Workspace, kube.APIServerSpec{
		Name: "eks", Namespace: site.Namespace, Address: site.Address, Port: 443, Etcd: etcd, Prefix: "/eks",
		Names: []string{eksHost},
		Flags: []string{
			"--authentication-token-webhook-config-file=" + config, "--authentication-token-webhook-version=v1",
		},
	})
	must(t, err)
	must(t, c.apiServer.Client.Create(t.Context(), networkPlugin()))
	crd, err := os.ReadFile(f.Parts.RealPath("capa-crd.yaml"))
	must(t, err)
	types, err := kube.ParseObjects(crd)
	must(t, err)
	must(t, f.Management.CreateAll(t.Context(), types))
	must(t, f.Management.WaitEstablished(t.Context(), types))
	must(t, f.Management.CreateAll(t.Context(), []*unstructured.Unstructured{eksControlPlane()}))
	must(t, f.Management.Client.Create(t.Context(), eksObject()))
	must(t, c.PatchTunnel(t.Context(), map[string]any{"kubeconfig": map[string]any{"mode": "connect"}}))
	return c
}

// serveTokenReviews is a stand-in for EKS' aws-iam-authenticator: a token of the provider is that of an administrator,
// as that of the role that created the cluster.
func serveTokenReviews(t *testing.T, at *netns.Site) {
	t.Helper()
	listener, err := at.Listen(t.Context(), authenticator)
	must(t, err)
	server := &http.Server{
		ReadHeaderTimeout: answerTime,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			review := &authenticationv1.TokenReview{}
			if err := json.NewDecoder(r.Body).Decode(review); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			encoded, ours := strings.CutPrefix(review.Spec.Token, "k8s-aws-v1.")
			url, err := base64.RawURLEncoding.DecodeString(encoded)
			if ours && err == nil && strings.HasPrefix(string(url), "https://sts.") {
				review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
					Username: "kubernetes-admin", Groups: []string{"system:masters"},
				}}
			}
			answer(w, http.StatusOK, review)
		}),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// networkPlugin is the DaemonSet that EKS creates in each cluster, and without which the provider waits.
func networkPlugin() *appsv1.DaemonSet {
	labels := map[string]string{"k8s-app": "aws-node"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "aws-node"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "aws-node", Image: "none"}}},
			},
		},
	}
}

func eksControlPlane() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "AWSManagedControlPlane",
		"metadata": map[string]any{"namespace": world.Namespace, "name": eksName},
		"spec": map[string]any{
			"eksClusterName": eksName, "region": "eu-west-1",
			"endpointAccess": map[string]any{"private": true, "public": false},
			"network": map[string]any{"subnets": []any{
				map[string]any{"id": "subnet-a", "availabilityZone": "eu-west-1a"},
				map[string]any{"id": "subnet-b", "availabilityZone": "eu-west-1b"},
			}},
			"iamAuthenticatorConfig": map[string]any{
				"mapRoles": []any{map[string]any{
					"rolearn": mappedRole, "username": "operator", "groups": []any{"system:masters"},
				}},
				"mapUsers": []any{map[string]any{
					"userarn": mappedUser, "username": "ada", "groups": []any{"viewers"},
				}},
			},
		},
	}}
}

func eksObject() *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: world.Namespace, Name: eksName,
			Labels: map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
		},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: eksHost, Port: 443},
			ControlPlaneRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "controlplane.cluster.x-k8s.io", Kind: "AWSManagedControlPlane", Name: eksName,
			},
		},
	}
}

// reconcile runs the provider's code once in the management network: see tools/capa.
func (c *eksCluster) reconcile(ctx context.Context) (string, error) {
	management, err := c.fleet.Management.AdminKubeconfig("management")
	config := c.fleet.File("capa-kubeconfig")
	if err := kube.WriteKubeconfig(config, management, err); err != nil {
		return "", err
	}
	ca := c.fleet.File("eks-ca.crt")
	if err := os.WriteFile(ca, c.apiServer.CA.CertPEM, 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, promise.Patience)
	defer cancel()
	out, err := c.fleet.Network.Management.Command(ctx, c.fleet.Parts.RealPath("capa-reconcile"),
		"-kubeconfig="+config, "-namespace="+world.Namespace, "-name="+eksName, "-endpoint=https://"+eksHost,
		"-ca="+ca, "-inside").CombinedOutput()
	return string(out), err
}
