package install

import (
	"context"
	"encoding/base64"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// TestKamajiWrites proves what the real Kamaji makes of the edit of docs/apiserver-egress.md, without running the
// control plane: its manager reconciles a TenantControlPlane at a real apiserver, which has no nodes.
func TestKamajiWrites(t *testing.T) {
	h := newWriter(t)
	that(t, "Kamaji's Deployment has our container and flags after one edit, and nothing of konnectivity runs in it",
		func(t *testing.T) {
			before, err := h.controlPlane(t.Context())
			must(t, err)
			patch := printedPatch(t, h.egress(t))
			ask(t, h.management, "--namespace="+shops, "patch", "tenantcontrolplane/"+hosted, "--type=merge", "--patch="+patch)
			must(t, proc.Wait(t.Context(), commandTime, h.migrated))
			h.settled(t)
			must(t, h.migrated(t.Context()))
			now, err := h.controlPlane(t.Context())
			must(t, err)
			measured("deployment_writes", float64(now.Generation-before.Generation))
		})
	that(t, "Kamaji changes nothing in later reconciliations of it", func(t *testing.T) { proveStable(t, h) })
}

// newWriter starts an apiserver, an etcd with TLS and Kamaji's manager as processes, and creates a control plane with
// konnectivity, whose load balancer has an address.
func newWriter(t *testing.T) *hosting {
	t.Helper()
	proof.Need(t)
	parts, err := workspace.FindClusterParts()
	must(t, err)
	w, err := workspace.NewWith(t.Context(), parts)
	must(t, err)
	t.Cleanup(func() { w.RunClosers(context.Background()) })
	segment, err := netns.NewSegment(t.Context(), w.Name, netip.MustParsePrefix("172.30.0.0/24"))
	must(t, err)
	w.OnClose(segment.Close)
	machine, err := segment.AddMachine(t.Context(), "management", 250)
	must(t, err)
	etcd, err := kube.StartEtcd(t.Context(), w, machine)
	must(t, err)
	server, err := kube.StartAPIServer(t.Context(), w, kube.APIServerSpec{
		Name: "management", Namespace: machine, Etcd: etcd, Prefix: "/registry",
		Address: netns.AddressAt(segment.Prefix, 250), Port: 6443,
	})
	must(t, err)
	h := &hosting{World: &World{
		management: &cluster.Cluster{APIServer: server, Workspace: w}, images: findRelease(t), commands: t.TempDir(),
	}}
	h.images.extract(t, "cli", "fairlead", h.commands)
	must(t, os.MkdirAll(w.File("home"), 0o700))
	data, err := server.AdminKubeconfig("management")
	must(t, kube.WriteKubeconfig(h.management.Kubeconfig(), data, err))
	h.runManager(t, machine)
	ask(t, h.management, "create", "namespace", shops)
	must(t, server.Apply(t.Context(), fill(t, "tenant.yaml", "VERSION", h.kubernetes(t), "KONNECTIVITY", konnectivity)))
	must(t, proc.Wait(t.Context(), commandTime, h.giveAddress))
	must(t, proc.Wait(t.Context(), commandTime, func(ctx context.Context) error {
		d, err := h.controlPlane(ctx)
		if err == nil && len(d.Spec.Template.Spec.Containers) != 4 {
			err = errors.New("konnectivity is not in the Deployment yet")
		}
		return err
	}))
	h.settled(t)
	return h
}

// runManager starts etcd with TLS and Kamaji's manager with its types.
func (h *hosting) runManager(t *testing.T, machine *netns.Namespace) {
	t.Helper()
	webhooks, err := pki.NewAuthority("kamaji-webhook")
	must(t, err)
	stores, err := pki.NewRSAAuthority("etcd")
	must(t, err)
	objects, err := kube.ParseObjects(kamajiSecrets(t, webhooks, stores))
	must(t, err)
	ask(t, h.management, "create", "namespace", kamajis)
	dir := t.TempDir()
	for _, object := range objects {
		if object.GetKind() != "Secret" {
			continue
		}
		must(t, h.management.Client.Create(t.Context(), object))
		for name, value := range object.Object["data"].(map[string]any) {
			data, err := base64.StdEncoding.DecodeString(value.(string))
			must(t, err)
			must(t, os.MkdirAll(filepath.Join(dir, object.GetName()), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, object.GetName(), name), data, 0o600))
		}
	}
	parts, w := h.management.Parts, h.management.Workspace
	run := func(spec proc.Spec) {
		spec.Namespace, spec.Log = machine, w.LogFile(spec.Name)
		process, err := proc.Start(spec)
		must(t, err)
		w.OnClose(func(context.Context) { process.Kill() })
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	const url = "https://127.0.0.1:12379"
	run(proc.Spec{Name: "etcd", Program: parts.RealPath("etcd"), Args: []string{
		"--data-dir=" + file("data"), "--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=http://127.0.0.1:0", "--client-cert-auth", "--trusted-ca-file=" + file("etcd-certs/ca.crt"),
		"--cert-file=" + file("etcd-certs/server.crt"), "--key-file=" + file("etcd-certs/server.key"),
	}})
	var crds []*unstructured.Unstructured
	for _, object := range h.manifests(t) {
		switch object.GetKind() {
		case "CustomResourceDefinition":
			crds = append(crds, object)
		case "DataStore":
			must(t, unstructured.SetNestedStringSlice(object.Object, []string{"127.0.0.1:12379"}, "spec", "endpoints"))
			object.SetNamespace("")
			must(t, h.management.CreateAll(t.Context(), crds))
			must(t, h.management.WaitEstablished(t.Context(), crds))
			must(t, h.management.CreateAll(t.Context(), []*unstructured.Unstructured{object}))
		}
	}
	// controller-runtime finds the certificate of webhooks in the folder for temporary files.
	hooks := file("k8s-webhook-server")
	must(t, os.Mkdir(hooks, 0o700))
	must(t, os.Rename(file("webhook-server-cert"), filepath.Join(hooks, "serving-certs")))
	run(proc.Spec{Name: "kamaji", Program: parts.MachinePath("kamaji"), Args: []string{
		"manager", "--datastore=kamaji-etcd", "--disable-telemetry", "--leader-elect=false",
		"--tmp-directory=" + file("tmp"), "--webhook-ca-path=" + filepath.Join(hooks, "serving-certs", "ca.crt"),
	}, Env: []string{
		"KUBECONFIG=" + h.management.Kubeconfig(), "POD_NAMESPACE=" + kamajis, "SERVICE_ACCOUNT=kamaji", "TMPDIR=" + dir,
	}})
}

// giveAddress gives the load balancer of the control plane an address.
func (h *hosting) giveAddress(ctx context.Context) error {
	service := &corev1.Service{}
	name := types.NamespacedName{Namespace: shops, Name: hosted}
	if err := h.management.Client.Get(ctx, name, service); err != nil {
		return err
	}
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: cluster.FirstBalancer.String()}}
	return h.management.Client.Status().Update(ctx, service)
}

// settled waits until Kamaji has not written the Deployment for some seconds.
func (h *hosting) settled(t *testing.T) {
	t.Helper()
	var seen int64
	last := time.Now()
	must(t, proc.Wait(t.Context(), commandTime, func(ctx context.Context) error {
		d, err := h.controlPlane(ctx)
		if err != nil {
			return err
		}
		if d.Generation != seen {
			seen, last = d.Generation, time.Now()
		}
		if time.Since(last) < 8*time.Second {
			return errors.New("the Deployment changes")
		}
		return nil
	}))
}
