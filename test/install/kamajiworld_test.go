package install

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const (
	// kamajis is the namespace of Kamaji.
	kamajis = "kamaji-system"
	// hosted is the TenantControlPlane of the Cluster paris.
	hosted = "hosted"
	// konnectivity is the version of konnectivity's server and agent: tools/bench/go.mod.
	konnectivity = "v0.36.0"
	// joinToken is the bootstrap token of kubelets, in the form that kubeadm requires.
	joinToken = "abcdef.0123456789abcdef"
)

// hosting is Fairlead beside Kamaji in a management cluster. Kamaji runs the control plane of the Cluster paris there,
// and its workers are at a site that reaches nothing but the load balancers of the management cluster, and that nothing
// reaches.
type hosting struct {
	*World
	site    *cluster.Site
	tenant  *kube.APIServer // at its load balancer
	admin   string          // kubeconfig of its administrator
	workers []*cluster.Node
}

// newHosting starts the management cluster with Cluster API and Kamaji.
func newHosting(t *testing.T) *hosting {
	t.Helper()
	proof.Need(t)
	began := time.Now()
	management := start(t, cluster.Options{Name: "management", Nodes: 2})[0]
	if _, err := os.Stat(management.Parts.MachinePath("kamaji")); err != nil {
		t.Fatalf("finding Kamaji: %v: run make verify-networks-kamaji", err)
	}
	h := &hosting{World: &World{management: management, images: findRelease(t), commands: t.TempDir()}}
	measured("clusters_s", time.Since(began).Seconds())
	h.provide(t, management)
	h.installClusterAPI(t)
	began = time.Now()
	h.loadKamaji(t)
	h.installKamaji(t)
	measured("kamaji_ready_s", time.Since(began).Seconds())
	return h
}

// programImage returns an image that runs one program as root, as the images of Kubernetes do.
func programImage(t *testing.T, program, at string) v1.Image {
	t.Helper()
	image, err := cluster.Image(at, cluster.File{From: program, To: at})
	must(t, err)
	config, err := image.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.Config.User = ""
	image, err = mutate.ConfigFile(image, config)
	must(t, err)
	return image
}

// loadKamaji loads the images of Kamaji and of its control planes.
func (h *hosting) loadKamaji(t *testing.T) {
	t.Helper()
	parts := h.management.Parts
	load := func(program, at, as string) {
		must(t, h.management.LoadImage(t.Context(), programImage(t, program, at), as))
	}
	version := h.kubernetes(t)
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		load(parts.MachinePath(name), "/usr/local/bin/"+name, "registry.k8s.io/"+name+":"+version)
	}
	load(parts.MachinePath("kamaji"), "/kamaji", h.kamajiImage(t))
	load(parts.RealPath("etcd"), "/etcd", "registry.example.com/etcd:lab")
	load(parts.RealPath("peers/konnectivity-server"), "/proxy-server", proxyImage("server"))
}

func proxyImage(part string) string {
	return "registry.k8s.io/kas-network-proxy/proxy-" + part + ":" + konnectivity
}

// kubernetes returns the version of control planes: the newest that this Kamaji accepts.
func (h *hosting) kubernetes(t *testing.T) string {
	t.Helper()
	version, err := h.management.Parts.MachineVersion(t.Context())
	must(t, err)
	return version
}

// manifests returns Kamaji's install.yaml, from its module.
func (h *hosting) manifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := kube.ReadObjects(h.management.Parts.MachinePath("kamaji.yaml"))
	must(t, err)
	return objects
}

// container returns the only container of Kamaji's Deployment.
func container(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	all, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("Kamaji has %d containers", len(all))
	}
	return all[0].(map[string]any)
}

// kamajiImage returns the image in Kamaji's install.yaml, whose tag is the version.
func (h *hosting) kamajiImage(t *testing.T) string {
	t.Helper()
	for _, object := range h.manifests(t) {
		if object.GetKind() == "Deployment" {
			return container(t, object)["image"].(string)
		}
	}
	t.Fatal("Kamaji's install.yaml has no Deployment")
	return ""
}

// installKamaji applies Kamaji's install.yaml without the objects of cert-manager and Prometheus, in whose place
// testdata/kamaji.yaml has a certificate. It waits until the manager is ready.
func (h *hosting) installKamaji(t *testing.T) {
	t.Helper()
	webhooks, err := pki.NewAuthority("kamaji-webhook")
	must(t, err)
	stores, err := pki.NewRSAAuthority("etcd")
	must(t, err)
	ask(t, h.management, "create", "namespace", kamajis)
	must(t, h.management.Apply(t.Context(), kamajiSecrets(t, webhooks, stores)))
	var crds, others, datastores []*unstructured.Unstructured
	for _, object := range h.manifests(t) {
		switch object.GetKind() {
		case "CustomResourceDefinition":
			crds = append(crds, object)
		case "Namespace", "Certificate", "Issuer", "ServiceMonitor":
		case "DataStore":
			must(t, unstructured.SetNestedStringSlice(object.Object, []string{"etcd.kamaji-system.svc.cluster.local:2379"},
				"spec", "endpoints"))
			object.SetNamespace("") // its type has no namespace
			datastores = append(datastores, object)
		default:
			others = append(others, h.adapt(t, object, webhooks))
		}
	}
	must(t, h.management.CreateAll(t.Context(), crds))
	must(t, h.management.WaitEstablished(t.Context(), crds))
	must(t, h.management.WaitDeployment(t.Context(), types.NamespacedName{Namespace: kamajis, Name: "etcd"}))
	// The manager ends without its default DataStore.
	must(t, h.management.CreateAll(t.Context(), datastores))
	must(t, h.management.CreateAll(t.Context(), others))
	manager := types.NamespacedName{Namespace: kamajis, Name: "kamaji-controller-manager"}
	must(t, h.management.WaitDeployment(t.Context(), manager))
}

// adapt gives webhooks their CA, and the manager a writable folder, which its image has, and no telemetry.
func (h *hosting) adapt(
	t *testing.T, object *unstructured.Unstructured, webhooks *pki.Authority,
) *unstructured.Unstructured {
	t.Helper()
	switch object.GetKind() {
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		all, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		must(t, err)
		for _, webhook := range all {
			config := webhook.(map[string]any)["clientConfig"].(map[string]any)
			config["caBundle"] = base64.StdEncoding.EncodeToString(webhooks.CertPEM)
		}
		must(t, unstructured.SetNestedSlice(object.Object, all, "webhooks"))
	case "Deployment":
		manager := container(t, object)
		manager["args"] = append(manager["args"].([]any), "--disable-telemetry")
		// The limits are for a core of its own.
		must(t, unstructured.SetNestedField(manager, "2", "resources", "limits", "cpu"))
		must(t, unstructured.SetNestedField(manager, "500Mi", "resources", "limits", "memory"))
		manager["volumeMounts"] = append(manager["volumeMounts"].([]any), map[string]any{"name": "tmp", "mountPath": "/tmp"})
		path := []string{"spec", "template", "spec"}
		must(t, unstructured.SetNestedSlice(object.Object, []any{manager}, append(path, "containers")...))
		must(t, unstructured.SetNestedField(object.Object, int64(65532), append(path, "securityContext", "runAsUser")...))
		volumes, _, err := unstructured.NestedSlice(object.Object, append(path, "volumes")...)
		must(t, err)
		volumes = append(volumes, map[string]any{"name": "tmp", "emptyDir": map[string]any{}})
		must(t, unstructured.SetNestedSlice(object.Object, volumes, append(path, "volumes")...))
	}
	return object
}

// fill replaces words of a file of testdata.
func fill(t *testing.T, name string, words ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	return []byte(strings.NewReplacer(words...).Replace(string(data)))
}

// kamajiSecrets returns testdata/kamaji.yaml.
func kamajiSecrets(t *testing.T, webhooks, stores *pki.Authority) []byte {
	t.Helper()
	text := base64.StdEncoding.EncodeToString
	issue := func(ca *pki.Authority, usage x509.ExtKeyUsage, name string, names ...string) (string, string) {
		pair, err := ca.Issue(pki.LeafSpec{CommonName: name, Names: names, Usage: usage})
		must(t, err)
		return text(pair.CertPEM), text(pair.KeyPEM)
	}
	const server, client = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	hookCRT, hookKey := issue(webhooks, server, "webhook", "kamaji-webhook-service."+kamajis+".svc")
	etcdCRT, etcdKey := issue(stores, server, "etcd", "etcd."+kamajis+".svc.cluster.local", "127.0.0.1")
	rootCRT, rootKey := issue(stores, client, "root")
	return fill(t, "kamaji.yaml",
		"WEBHOOK_CA", text(webhooks.CertPEM), "WEBHOOK_CRT", hookCRT, "WEBHOOK_KEY", hookKey,
		"ETCD_CA_CRT", text(stores.CertPEM), "ETCD_CA_KEY", text(stores.KeyPEM), "ETCD_CRT", etcdCRT, "ETCD_KEY", etcdKey,
		"ROOT_CRT", rootCRT, "ROOT_KEY", rootKey)
}

// createTenant creates the control plane, waits until Kamaji reports it as ready, and connects to it.
func (h *hosting) createTenant(t *testing.T) {
	t.Helper()
	ask(t, h.management, "create", "namespace", shops)
	words := []string{"VERSION", h.kubernetes(t), "KONNECTIVITY", konnectivity}
	must(t, h.management.Apply(t.Context(), fill(t, "tenant.yaml", words...)))
	ask(t, h.management, "--namespace="+shops, "wait", "tenantcontrolplane/"+hosted, "--timeout=280s",
		"--for=jsonpath={.status.kubernetesResources.version.status}=Ready")
	endpoint, err := netip.ParseAddrPort(ask(t, h.management, "--namespace="+shops, "get", "tenantcontrolplane/"+hosted,
		"--output=jsonpath={.status.controlPlaneEndpoint}"))
	must(t, err)
	ca := &corev1.Secret{}
	name := types.NamespacedName{Namespace: shops, Name: hosted + "-ca"}
	must(t, h.management.Client.Get(t.Context(), name, ca))
	authority, err := pki.ReadAuthority(ca.Data["ca.crt"], ca.Data["ca.key"])
	must(t, err)
	h.tenant, err = kube.Connect("paris", h.management.Namespace, endpoint, authority)
	must(t, err)
	kubeconfig, err := h.tenant.AdminKubeconfig("paris")
	must(t, err)
	h.admin = h.management.File("paris.kubeconfig")
	must(t, os.WriteFile(h.admin, kubeconfig, 0o600))
}

// kubelets are what the kubelets of this machine need beside the configuration that Kamaji gives them.
const kubelets = `failSwapOn: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
syncFrequency: 10s
`

// buildSite makes the network of the workers. They reach the load balancers of the management cluster.
func (h *hosting) buildSite(t *testing.T) {
	t.Helper()
	var err error
	h.site, err = cluster.NewSite(t.Context(), h.management.Workspace, h.tenant, "oslo",
		netip.MustParsePrefix("172.30.1.0/24"))
	must(t, err)
	h.site.Kubelet = kubelets
	images := h.site.Images()
	must(t, images.Reach(t.Context(), h.management))
	agent := h.management.Parts.RealPath("peers/konnectivity-agent")
	must(t, images.LoadImage(t.Context(), programImage(t, agent, "/proxy-agent"), proxyImage("agent")))
	guest, err := cluster.GuestImage(t.Context())
	must(t, err)
	must(t, images.LoadImage(t.Context(), guest, "registry.example.com/guest:v1"))
	must(t, images.Load(t.Context(), filepath.Join(h.images.dir, "fairlead-edge"), h.images.image("edge")))
}

// nameSite makes the public name of the gateways resolve in both networks.
func (h *hosting) nameSite(t *testing.T) {
	t.Helper()
	const address = "jsonpath={.status.loadBalancer.ingress[0].ip}"
	service := []string{"--namespace=" + system, "service/gateway-public"}
	// The controller creates it after Helm has returned.
	ask(t, h.management, append([]string{"wait", "--for=create", "--timeout=60s"}, service...)...)
	ask(t, h.management, append([]string{"wait", "--for=" + address, "--timeout=60s"}, service...)...)
	parsed, err := netip.ParseAddr(ask(t, h.management, append([]string{"get", "--output=" + address}, service...)...))
	must(t, err)
	h.management.SetHost(publicName, parsed)
	h.site.SetHost(publicName, parsed)
}

// join joins a worker, with a token that an administrator of the control plane makes.
func (h *hosting) join(t *testing.T, name string, number int) {
	t.Helper()
	worker, err := h.site.StartNode(t.Context(), name, number)
	must(t, err)
	h.workers = append(h.workers, worker)
	must(t, worker.Join(t.Context(), joinToken, "site=oslo"))
}

// kubectl runs kubectl as the administrator of the control plane, through its load balancer.
func (h *hosting) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := h.management.Namespace.Command(ctx, h.management.Parts.RealPath("kubectl"),
		append([]string{"--kubeconfig=" + h.admin, "--cache-dir=" + h.management.File("kubectl-paris")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", args[0], err, out)
	}
	return string(out), nil
}

// says returns a condition that is nil if kubectl prints a text.
func (h *hosting) says(want string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := h.kubectl(ctx, args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("kubectl %s prints %q, want %q", args[0], out, want)
		}
		return err
	}
}

// shells waits until each worker has its Pod, and returns their names by worker.
func (h *hosting) shells(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	must(t, proc.Wait(t.Context(), commandTime, func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := h.tenant.Client.List(ctx, pods); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.Conditions {
				if pod.Labels["app"] == "shell" && c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					found[pod.Spec.NodeName] = pod.Name
				}
			}
		}
		if len(found) != len(h.workers) {
			return errors.New("not every worker has its Pod")
		}
		return nil
	}))
	return found
}
