package install

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/deploy/edge"
	"github.com/fairlead/fairlead/test/lab/capi"
	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	// publicName is the host of PUBLIC_ADDRESS in settings.yaml.
	publicName = "gateway.example.com"
	// gatewayName is the host of APISERVER_ADDRESS and CONNECT_ADDRESS.
	gatewayName = "gateway.fairlead-system.svc"
	// shops is the namespace of the Cluster.
	shops = "shops"
)

// World is an installation in a management cluster, and a workload cluster that it cannot dial.
type World struct {
	management, workload *cluster.Cluster
	root                 string // of the repository
}

// newWorld starts both clusters and loads the images.
func newWorld(t *testing.T) *World {
	t.Helper()
	proof.Need(t)
	began := time.Now()
	clusters := start(t,
		cluster.Options{Name: "management", Nodes: 2},
		cluster.Options{Name: "workload", Nodes: 1, Hosts: map[string]netip.Addr{publicName: cluster.FirstBalancer}},
	)
	measured("clusters_s", time.Since(began).Seconds())
	w := &World{management: clusters[0], workload: clusters[1], root: clusters[0].Parts.Root}
	must(t, w.workload.Reach(t.Context(), w.management))
	w.loadImages(t)
	return w
}

// loadImages loads images with our programs under the names in deploy.
func (w *World) loadImages(t *testing.T) {
	t.Helper()
	dir := programs(w.root)
	load := func(c *cluster.Cluster, name string, image v1.Image, err error) {
		t.Helper()
		must(t, err)
		must(t, c.LoadImage(t.Context(), image, name))
	}
	for _, name := range []string{"controller", "xds-server"} {
		image, err := cluster.ProgramImage(filepath.Join(dir, name))
		load(w.management, "fairlead-"+name+":dev", image, err)
	}
	image, err := w.agentImage(t, dir, "gateway-agent", true)
	load(w.management, "fairlead-gateway:dev", image, err)
	image, err = w.agentImage(t, dir, "edge-agent", false)
	load(w.workload, "fairlead-edge:latest", image, err)
}

// programs returns the folder with our programs, which are linked statically.
func programs(root string) string {
	return cmp.Or(os.Getenv(workspace.BinEnv), filepath.Join(root, "bin", "static"))
}

// agentImage returns an image with an agent and Envoy, and with the libraries of this machine that Envoy links.
func (w *World) agentImage(t *testing.T, dir, agent string, netAdmin bool) (v1.Image, error) {
	t.Helper()
	const bin = "/usr/local/bin/"
	envoy, err := filepath.EvalSymlinks(w.management.Parts.RealPath("envoy"))
	must(t, err)
	files := []cluster.File{
		{From: filepath.Join(dir, agent), To: bin + agent, NetAdmin: netAdmin}, {From: envoy, To: bin + "envoy"},
	}
	out, err := exec.CommandContext(t.Context(), "ldd", envoy).Output()
	must(t, err)
	for field := range strings.FieldsSeq(string(out)) {
		if filepath.IsAbs(field) {
			files = append(files, cluster.File{From: field, To: field})
		}
	}
	if len(files) < 4 {
		t.Fatalf("Envoy links only %q", out)
	}
	return cluster.Image(bin+agent, files...)
}

// installClusterAPI starts Cluster API's core manager beside the management cluster's apiserver.
func (w *World) installClusterAPI(t *testing.T) {
	t.Helper()
	authority, err := pki.NewAuthority("capi-webhook")
	must(t, err)
	provider := capi.Provider{Workspace: w.management.Workspace, Management: w.management.APIServer, Webhooks: authority}
	_, err = provider.Start(t.Context(), make(chan struct{}))
	must(t, err)
}

// apply applies a kustomization of the repository.
func (w *World) apply(t *testing.T, c *cluster.Cluster, folder string) {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "kustomize", filepath.Join(w.root, folder)).Output()
	must(t, err)
	must(t, c.Apply(t.Context(), out))
}

// createCluster creates a Cluster for the workload cluster, with what its providers would create.
func (w *World) createCluster(t *testing.T) {
	t.Helper()
	endpoint := w.workload.Endpoint
	must(t, w.management.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: v1
kind: Namespace
metadata: {name: shops}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: LabCluster
metadata: {name: paris, namespace: shops}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: LabControlPlane
metadata: {name: paris, namespace: shops}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: paris, namespace: shops, labels: {fairlead.dev/tunnel: enabled}}
spec:
  controlPlaneEndpoint: {host: %q, port: %d}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabCluster, name: paris}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LabControlPlane, name: paris}
`, endpoint.Addr(), endpoint.Port())))
	kubeconfig, err := w.workload.AdminKubeconfig("paris")
	must(t, err)
	owner := &unstructured.Unstructured{}
	owner.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
	owner.SetKind("LabControlPlane")
	must(t, w.management.Client.Get(t.Context(), types.NamespacedName{Namespace: shops, Name: "paris"}, owner))
	for purpose, data := range map[string]map[string][]byte{
		"kubeconfig": {"value": kubeconfig},
		"ca":         {"tls.crt": w.workload.CA.CertPEM, "tls.key": w.workload.CA.KeyPEM},
	} {
		must(t, w.management.Client.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: shops, Name: "paris-" + purpose, Labels: map[string]string{"cluster.x-k8s.io/cluster-name": "paris"},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())},
			},
			Type: "cluster.x-k8s.io/secret", Data: data,
		}))
	}
	for object, status := range map[string]string{
		"labcluster/paris": `{"status": {"initialization": {"provisioned": true}}}`,
		"labcontrolplane/paris": `{"status": {
			"initialization": {"controlPlaneInitialized": true}, "externalManagedControlPlane": true
		}}`,
	} {
		ask(t, w.management, "--namespace="+shops, "patch", object, "--subresource=status", "--type=merge", "--patch="+status)
	}
}

// edgeSecret is the bootstrap Secret in the workload cluster.
var edgeSecret = types.NamespacedName{Namespace: "fairlead-edge", Name: "fairlead-edge-bootstrap"}

// edgeFile is the key of the bootstrap file in it.
const edgeFile = "bootstrap.yaml"

// startEdges gives the bootstrap Secret to the workload cluster, and applies the Deployment of edges there.
func (w *World) startEdges(t *testing.T) {
	t.Helper()
	bootstrap := &corev1.Secret{}
	eventually(t, func(ctx context.Context) error {
		return w.management.Client.Get(ctx, types.NamespacedName{
			Namespace: shops, Name: "paris" + v1alpha1.BootstrapSecretSuffix,
		}, bootstrap)
	})
	file := struct{ ID string }{}
	must(t, yaml.Unmarshal(bootstrap.Data[v1alpha1.BootstrapFileKey], &file))
	// As a user of deployment.yaml does.
	must(t, w.workload.Client.Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: edgeSecret.Namespace, Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "restricted",
		}},
	}))
	must(t, w.workload.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: edgeSecret.Namespace, Name: edgeSecret.Name},
		Data:       map[string][]byte{edgeFile: bootstrap.Data[v1alpha1.BootstrapFileKey]},
	}))
	must(t, w.workload.Apply(t.Context(), []byte(edge.DeploymentOf(file.ID, "fairlead-edge"))))
}

// removeToken removes the bootstrap token from the Secret in the workload cluster.
func (w *World) removeToken(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	must(t, w.workload.Client.Get(t.Context(), edgeSecret, secret))
	var file map[string]any
	must(t, yaml.Unmarshal(secret.Data[edgeFile], &file))
	if _, found := file["token"]; !found {
		t.Fatal("the bootstrap file has no token")
	}
	delete(file, "token")
	data, err := yaml.Marshal(file)
	must(t, err)
	secret.Data[edgeFile] = data
	must(t, w.workload.Client.Update(t.Context(), secret))
}

// nameGateway makes the name of the Service gateway resolve where Cluster API and this test's clients run.
func (w *World) nameGateway(t *testing.T) {
	t.Helper()
	address, err := netip.ParseAddr(ask(t, w.management, "--namespace=fairlead-system", "get", "service", "gateway",
		"--output=jsonpath={.spec.clusterIP}"))
	must(t, err)
	must(t, w.management.Namespace.SetHost(gatewayName, address))
}

// reach reads the namespace kube-system with the kubeconfig that Cluster API reads now, over a new connection, and
// checks that the workload cluster answered.
func (w *World) reach(ctx context.Context) error {
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: shops, Name: "paris-kubeconfig"}
	if err := w.management.Client.Get(ctx, name, secret); err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		return err
	}
	if strings.Contains(config.Host, w.workload.Endpoint.String()) && config.Proxy == nil {
		return errors.New("the kubeconfig does not lead through the tunnel yet")
	}
	config.Dial, config.Timeout = w.management.Namespace.DialContext, requestTime
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	clients, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return err
	}
	got, err := clients.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	if err := w.workload.Client.Get(ctx, client.ObjectKeyFromObject(want), want); err != nil {
		return err
	}
	if got.UID != want.UID {
		return fmt.Errorf("another apiserver answered: its kube-system has uid %s, not %s", got.UID, want.UID)
	}
	return nil
}

// requestTime bounds one request, commandTime one kubectl command.
const (
	requestTime = 5 * time.Second
	commandTime = 3 * time.Minute
)

// ask runs kubectl, which must succeed, and returns its output.
func ask(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	cmd := c.Kubectl(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("kubectl %s: %v: %s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return strings.TrimSpace(stdout.String())
}
