package install

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// TestKamaji migrates a running control plane of the real Kamaji off konnectivity, by the commands of
// docs/apiserver-egress.md, and back. It has a target of its own: make verify-networks-kamaji.
func TestKamaji(t *testing.T) {
	h := newHosting(t)
	for _, check := range []struct {
		promise string
		prove   func(*testing.T, *hosting)
	}{
		{"Kamaji makes a control plane with konnectivity, and kubelets of another network join it", proveTenant},
		{"exec, logs, port-forward and a webhook work through konnectivity", proveRequests},
		{"Fairlead is installed beside it, and its edges serve the network while konnectivity does", proveEdges},
		{"one edit takes a control plane off konnectivity: one rollout, and no Node is lost", proveMigration},
		{"konnectivity is gone from the control plane and from the workers", proveGone},
		{"exec, logs, port-forward and a webhook work through Fairlead", proveRequests},
		{"Kamaji changes nothing in later reconciliations", proveStable},
		{"a removed network ends what the apiserver reaches: nothing else led there", proveOnlyWay},
	} {
		if !that(t, check.promise, func(t *testing.T) { check.prove(t, h) }) {
			t.FailNow()
		}
	}
}

func proveTenant(t *testing.T, h *hosting) {
	began := time.Now()
	h.createTenant(t)
	measured("tenant_ready_s", time.Since(began).Seconds())
	h.buildSite(t)
	must(t, h.tenant.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-%[1]s, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: %[1]s
  token-secret: %[2]q
  usage-bootstrap-authentication: "true"
  usage-bootstrap-signing: "true"
  auth-extra-groups: system:bootstrappers:kubeadm:default-node-token
`, joinToken[:6], joinToken[7:])))
	began = time.Now()
	for i, name := range []string{"oslo-1", "oslo-2"} {
		h.join(t, name, 16+i)
	}
	measured("nodes_ready_s", time.Since(began).Seconds())
	authority, err := pki.NewAuthority("hook")
	must(t, err)
	pair, err := authority.Issue(pki.LeafSpec{
		CommonName: "hook", Names: []string{"hook.default.svc"}, Usage: x509.ExtKeyUsageServerAuth,
	})
	must(t, err)
	text := base64.StdEncoding.EncodeToString
	must(t, h.tenant.Apply(t.Context(), fill(t, "tenant-pods.yaml",
		"HOOK_CRT", text(pair.CertPEM), "HOOK_KEY", text(pair.KeyPEM), "HOOK_CA", text(authority.CertPEM))))
	h.shells(t)
}

// proveRequests sends what an apiserver forwards to each worker.
func proveRequests(t *testing.T, h *hosting) {
	for worker, pod := range h.shells(t) {
		eventually(t, h.says(worker+"\n", "exec", pod, "--", "/guest", "env", "NODE"))
		eventually(t, h.says("serving "+worker+" at ", "logs", pod))
		eventually(t, func(ctx context.Context) error { return h.forwards(ctx, pod, worker) })
	}
	eventually(t, h.denied)
}

// forwards returns nil if port-forward reaches a Pod.
func (h *hosting) forwards(ctx context.Context, pod, want string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := h.management.Namespace.Command(ctx, h.management.Parts.RealPath("kubectl"), "--kubeconfig="+h.admin,
		"port-forward", "pod/"+pod, ":8080")
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n') // Forwarding from 127.0.0.1:40123 -> 8080
	fields := strings.Fields(line)
	if err != nil || len(fields) < 3 {
		return fmt.Errorf("kubectl port-forward prints %q: %w", line, err)
	}
	transport := &http.Transport{DialContext: h.management.Namespace.DialContext, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+fields[2], http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err == nil && string(data) != want {
		err = fmt.Errorf("%q answers, want %q", data, want)
	}
	return err
}

// denied returns nil if the webhook denies an object.
func (h *hosting) denied(ctx context.Context) error {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "probe", Labels: map[string]string{"probe": "webhook"},
	}}
	err := h.tenant.Client.Create(ctx, probe, client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), "denied at the site") {
		return fmt.Errorf("want a denial by the webhook: %w", err)
	}
	return nil
}

// proveEdges installs Fairlead, and runs the command that fairlead network join prints for a DaemonSet.
func proveEdges(t *testing.T, h *hosting) {
	began := time.Now()
	h.run(t, h.management, h.documented(t))
	h.nameSite(t)
	eventually(t, h.gatewaysReady)
	h.createCluster(t, h.tenant)
	must(t, h.management.Apply(t.Context(), []byte(`
apiVersion: fairlead.dev/v1alpha1
kind: RemoteNetwork
metadata: {name: oslo, namespace: shops}
spec:
  clusterName: paris
  cidrs: [172.30.1.0/24, 10.244.16.0/20]
  ports: [{port: 10250}, {port: 9443}]
`)))
	for _, worker := range h.workers {
		_, err := worker.Run(t.Context(), "sh", "-c", "install -d -m 0755 -o 65532 -g 65532 /var/lib/fairlead")
		must(t, err)
	}
	join := h.run(t, h.management, "fairlead network join -n "+shops+" oslo --form=daemonset --node-selector=site=oslo "+
		"--image="+h.images.image("edge"))
	h.run(t, h.management, "KUBECONFIG="+h.admin+"\n"+join)
	ask(t, h.management, "--namespace="+shops, "wait", "remotenetwork/oslo", "--for=condition=TunnelReady",
		"--timeout=280s")
	eventually(t, h.edgesConnected)
	measured("fairlead_ready_s", time.Since(began).Seconds())
	if out, err := h.kubectl(t.Context(), "--namespace=kube-system", "get", "daemonset/konnectivity-agent"); err != nil {
		t.Error(out, err)
	}
}

// edgesConnected returns nil once the edge of each worker has tunnels.
func (h *hosting) edgesConnected(ctx context.Context) error {
	tunnel := &v1alpha1.Tunnel{}
	name := types.NamespacedName{Namespace: shops, Name: "oslo" + v1alpha1.NetworkTunnelSuffix}
	if err := h.management.Client.Get(ctx, name, tunnel); err != nil {
		return err
	}
	connected := slices.DeleteFunc(tunnel.Status.Edges, func(e v1alpha1.EdgeStatus) bool { return len(e.Gateways) < 2 })
	if len(connected) != len(h.workers) {
		return fmt.Errorf("%d edges are connected, want %d", len(connected), len(h.workers))
	}
	return nil
}

// controlPlane returns the Deployment of the control plane.
func (h *hosting) controlPlane(ctx context.Context) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	return d, h.management.Client.Get(ctx, types.NamespacedName{Namespace: shops, Name: hosted}, d)
}

// egress returns what fairlead network egress prints.
func (h *hosting) egress(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := kube.ParseObjects([]byte(h.run(t, h.management, "fairlead network egress -n "+shops+
		" paris --for=kamaji --image="+h.images.image("edge"))))
	must(t, err)
	return objects
}

// printedPatch returns the merge patch of a TenantControlPlane that docs/apiserver-egress.md describes: the printed
// fields, without konnectivity.
func printedPatch(t *testing.T, printed []*unstructured.Unstructured) string {
	t.Helper()
	for _, object := range printed {
		if object.GetKind() == "TenantControlPlane" {
			spec := object.Object["spec"].(map[string]any)
			spec["addons"] = map[string]any{"konnectivity": nil}
			patch, err := json.Marshal(map[string]any{"spec": spec})
			must(t, err)
			return string(patch)
		}
	}
	t.Fatal("fairlead network egress prints no TenantControlPlane")
	return ""
}

// readySince returns since when each Node is Ready.
func (h *hosting) readySince(t *testing.T) map[string]time.Time {
	t.Helper()
	nodes := &corev1.NodeList{}
	must(t, h.tenant.Client.List(t.Context(), nodes))
	since := map[string]time.Time{}
	for _, node := range nodes.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				since[node.Name] = c.LastTransitionTime.Time
			}
		}
	}
	if len(since) != len(h.workers) {
		t.Errorf("%d Nodes are Ready, want %d", len(since), len(h.workers))
	}
	return since
}

// execPause is between two runs of kubectl, which cost much more than what they send.
const execPause = time.Second

// watch repeats requests until the returned function is called, which records how many were lost.
func (h *hosting) watch(t *testing.T) (stop func() map[string]promise.Watched) {
	t.Helper()
	worker, pod := "oslo-1", h.shells(t)["oslo-1"]
	clients, err := kubernetes.NewForConfig(h.tenant.Config)
	must(t, err)
	watched := map[string]func() promise.Watched{}
	for name, request := range map[string]func(context.Context) error{
		"api": func(ctx context.Context) error {
			_, err := clients.CoreV1().Nodes().Get(ctx, worker, metav1.GetOptions{})
			return err
		},
		"exec": func(ctx context.Context) error {
			time.Sleep(execPause)
			return h.says(worker+"\n", "exec", pod, "--", "/guest", "env", "NODE")(ctx)
		},
		"logs": func(ctx context.Context) error {
			return clients.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{}).Do(ctx).Error()
		},
		"port_forward": func(ctx context.Context) error {
			time.Sleep(execPause)
			return h.forwards(ctx, pod, worker)
		},
		"webhook": h.denied,
	} {
		watched[name] = promise.Watch(t, request)
	}
	return func() map[string]promise.Watched {
		results := map[string]promise.Watched{}
		for name, stop := range watched {
			w := stop()
			results[name] = w
			measured(name+"_sent", float64(w.Sent))
			measured(name+"_lost", float64(w.Lost))
			measured(name+"_outage_s", w.Outage.Seconds())
		}
		return results
	}
}

// oldPods is how long requests are counted after the edit: the Pods of before end within 30 s after the rollout.
const oldPods = time.Minute

// keepAgents sets the finalizers of konnectivity's DaemonSet, as docs/apiserver-egress.md describes. With one, the
// agents outlive the addon.
func (h *hosting) keepAgents(t *testing.T, finalizers string) {
	t.Helper()
	_, err := h.kubectl(t.Context(), "--namespace=kube-system", "patch", "daemonset/konnectivity-agent", "--type=merge",
		`--patch={"metadata":{"finalizers":`+finalizers+`}}`)
	must(t, err)
}

func proveMigration(t *testing.T, h *hosting) {
	printed, since := h.egress(t), h.readySince(t)
	for _, object := range printed {
		if object.GetKind() == "ConfigMap" {
			must(t, h.management.Client.Create(t.Context(), object))
		}
	}
	patch := printedPatch(t, printed)
	before, err := h.controlPlane(t.Context())
	must(t, err)
	stop := h.watch(t)
	time.Sleep(2 * time.Second)
	h.keepAgents(t, `["fairlead.dev/migration"]`)
	began := time.Now()
	ask(t, h.management, "--namespace="+shops, "patch", "tenantcontrolplane/"+hosted, "--type=merge", "--patch="+patch)
	must(t, proc.Wait(t.Context(), commandTime, h.migrated))
	must(t, h.management.WaitDeployment(t.Context(), client.ObjectKeyFromObject(before)))
	measured("rollout_s", time.Since(began).Seconds())
	ask(t, h.management, "--namespace="+shops, "wait", "remotenetwork/oslo", "--for=condition=EgressReady",
		"--timeout=280s")
	measured("egress_ready_s", time.Since(began).Seconds())
	time.Sleep(oldPods - time.Since(began))
	t.Logf("%+v", stop())
	now, err := h.controlPlane(t.Context())
	must(t, err)
	measured("deployment_writes", float64(now.Generation-before.Generation))
	h.keepAgents(t, "null")
	for node, now := range h.readySince(t) {
		if !now.Equal(since[node]) {
			t.Errorf("%s was Ready since %s, and is since %s", node, since[node], now)
		}
	}
}

// migrated returns nil once the Deployment has what the patch demands.
func (h *hosting) migrated(ctx context.Context) error {
	d, err := h.controlPlane(ctx)
	if err != nil {
		return err
	}
	const flag = "--egress-selector-config-file=/etc/kubernetes/fairlead-egress/egress.yaml"
	var names, flags []string
	for _, c := range d.Spec.Template.Spec.Containers {
		names = append(names, c.Name)
		flags = append(flags, c.Args...)
	}
	if !slices.Contains(names, "fairlead-egress") || slices.Contains(names, "konnectivity-server") ||
		!slices.Contains(flags, flag) {
		return fmt.Errorf("the control plane has the containers %q and the flags %q", names, flags)
	}
	return nil
}

// proveGone looks for what konnectivity had on both sides.
func proveGone(t *testing.T, h *hosting) {
	eventually(t, func(ctx context.Context) error {
		err := h.tenant.Client.Get(ctx, types.NamespacedName{Namespace: "kube-system", Name: "konnectivity-agent"},
			&appsv1.DaemonSet{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("konnectivity-agent is there: %w", err)
		}
		pods := &corev1.PodList{}
		if err := h.tenant.Client.List(ctx, pods, client.MatchingLabels{"k8s-app": "konnectivity-agent"}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return errors.New("Pods of konnectivity-agent run")
		}
		return nil
	})
}

// proveStable makes Kamaji reconcile again.
func proveStable(t *testing.T, h *hosting) {
	before, err := h.controlPlane(t.Context())
	must(t, err)
	for i := range 3 {
		ask(t, h.management, "--namespace="+shops, "annotate", "--overwrite", "tenantcontrolplane/"+hosted,
			fmt.Sprintf("example.com/touched=%d", i))
		time.Sleep(2 * time.Second)
	}
	now, err := h.controlPlane(t.Context())
	must(t, err)
	if now.Generation != before.Generation {
		t.Errorf("Kamaji has written the Deployment %d times", now.Generation-before.Generation)
	}
}

// proveOnlyWay ends the edges.
func proveOnlyWay(t *testing.T, h *hosting) {
	ask(t, h.management, "--namespace="+shops, "delete", "remotenetwork/oslo", "--timeout=60s")
	pod := h.shells(t)["oslo-1"]
	must(t, proc.Wait(t.Context(), promise.Patience, func(ctx context.Context) error {
		if _, err := h.kubectl(ctx, "exec", pod, "--", "/guest", "env", "NODE"); err == nil {
			return errors.New("exec works without Fairlead")
		}
		return nil
	}))
}
