package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/capi"
	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const (
	// system is the namespace of the installation, shops the one of the Cluster, and edges that of edges in Pods.
	system, shops, edges = "fairlead-system", "shops", "fairlead-edge"
	// publicName is the host of the public address that the chart derives from the tunnel domain.
	publicName = "gateway.tunnels.example.com"
	// gatewayName is the host in kubeconfigs.
	gatewayName = "gateway." + system + ".svc"
)

// World is an installation in a management cluster, and a workload cluster that it cannot dial.
type World struct {
	management, workload *cluster.Cluster
	images               release
	commands             string           // folder of the programs for machines and users, from the images
	machine              *cluster.Machine // in the network of the workload cluster, with an edge of systemd's units
	units                []*proc.Service  // of the machine: Envoy and the agent
	dialed               <-chan error     // the result of a dial from the management cluster to the workload cluster
	oldCA                string           // before the rotation
	before               map[string]bool  // the objects of the management cluster before the installation
}

// newWorld starts both clusters and pushes the images to their registries.
func newWorld(t *testing.T, nodes int) *World {
	t.Helper()
	proof.Need(t)
	began := time.Now()
	clusters := start(t,
		cluster.Options{Name: "management", Nodes: 2}, cluster.Options{Name: "workload", Nodes: nodes},
	)
	measured("clusters_s", time.Since(began).Seconds())
	w := &World{management: clusters[0], workload: clusters[1], images: findRelease(t), commands: t.TempDir()}
	must(t, w.workload.Reach(t.Context(), w.management))
	w.provide(t, clusters...)
	return w
}

// provide extracts the programs of the images, and pushes the images to the registries of clusters and the chart to the
// management cluster's.
func (w *World) provide(t *testing.T, clusters ...*cluster.Cluster) {
	t.Helper()
	w.images.extract(t, "cli", "fairlead", w.commands)
	w.images.extract(t, "edge", "edge-agent", w.commands)
	began := time.Now()
	for _, c := range clusters {
		must(t, os.MkdirAll(c.File("home"), 0o700))
		w.images.push(t, w, c)
	}
	w.images.pushChart(t, w, w.management)
	measured("push_s", time.Since(began).Seconds())
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

// createCluster creates the Cluster paris for an apiserver, with what its providers would create.
func (w *World) createCluster(t *testing.T, workload *kube.APIServer) {
	t.Helper()
	endpoint := workload.Endpoint
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
metadata: {name: paris, namespace: shops}
spec:
  controlPlaneEndpoint: {host: %q, port: %d}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabCluster, name: paris}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LabControlPlane, name: paris}
`, endpoint.Addr(), endpoint.Port())))
	kubeconfig, err := workload.AdminKubeconfig("paris")
	must(t, err)
	owner := &unstructured.Unstructured{}
	owner.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
	owner.SetKind("LabControlPlane")
	must(t, w.management.Client.Get(t.Context(), types.NamespacedName{Namespace: shops, Name: "paris"}, owner))
	for purpose, data := range map[string]map[string][]byte{
		"kubeconfig": {"value": kubeconfig},
		"ca":         {"tls.crt": workload.CA.CertPEM, "tls.key": workload.CA.KeyPEM},
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

// nameGateway makes the name of the Service gateway resolve where Cluster API and this test's clients run.
func (w *World) nameGateway(t *testing.T) {
	t.Helper()
	address, err := netip.ParseAddr(ask(t, w.management, "--namespace="+system, "get", "service", "gateway",
		"--output=jsonpath={.spec.clusterIP}"))
	must(t, err)
	must(t, w.management.Namespace.SetHost(gatewayName, address))
}

// namePublic makes a name resolve to the load balancer of the Service gateway-public, in both networks.
func (w *World) namePublic(t *testing.T, name string) {
	t.Helper()
	address, err := netip.ParseAddr(ask(t, w.management, "--namespace="+system, "get", "service", "gateway-public",
		"--output=jsonpath={.status.loadBalancer.ingress[0].ip}"))
	must(t, err)
	w.management.SetHost(name, address)
	w.workload.SetHost(name, address)
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
	traced, progress := trace(ctx)
	got, err := clients.CoreV1().Namespaces().Get(traced, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%w (%s)", err, progress())
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

// trace returns a context for a request, and a function that returns what the request has completed.
func trace(ctx context.Context) (traced context.Context, progress func() string) {
	var last atomic.Value
	last.Store("not connected")
	began := time.Now()
	set := func(text string) {
		last.Store(fmt.Sprintf("%s after %s", text, time.Since(began).Round(time.Millisecond)))
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectDone:       func(string, string, error) { set("connected") },
		TLSHandshakeStart: func() { set("TLS handshake begun") },
		WroteRequest:      func(httptrace.WroteRequestInfo) { set("request sent") },
	}), func() string { return last.Load().(string) }
}

// requestTime bounds one request, commandTime one command. A busy machine needs a multiple of what an idle one does.
const (
	requestTime = 10 * time.Second
	commandTime = 5 * time.Minute
)

// eventually waits until a condition returns nil. Kubelets pull images and start Pods meanwhile. What is too slow shows
// in the figures.
func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	must(t, proc.Wait(t.Context(), commandTime, condition))
}

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

// try runs a shell script as a user of a cluster does: with its kubeconfig, in its control plane's network, and with
// helm, kubectl and fairlead in its PATH. It returns standard output and standard error.
func (w *World) try(ctx context.Context, c *cluster.Cluster, script string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := c.Namespace.Command(ctx, "sh", "-eu")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.File("home"),
		"PATH="+w.commands+":"+c.Parts.Real+":"+os.Getenv("PATH"))
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(script), &out, &errs, c.Parts.Root
	err = cmd.Run()
	return out.String(), strings.TrimSpace(errs.String()), err
}

// run is try for a script that must succeed. It returns standard output.
func (w *World) run(t *testing.T, c *cluster.Cluster, script string) string {
	t.Helper()
	stdout, stderr, err := w.try(t.Context(), c, script)
	if err != nil {
		t.Fatalf("%s: %v: %s\n%s", firstLine(script), err, stderr, stdout)
	}
	return stdout
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// document returns a file of the folder docs.
func (w *World) document(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(w.management.Parts.Root, "docs", name))
	must(t, err)
	return string(data)
}
