package chart_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// deliveries are the flags of kubectl with which it applies and compares objects as tools of GitOps do. `kubectl diff`
// asks the apiserver what an apply would change.
var deliveries = map[string][]string{
	// helm-controller applies with Helm, and compares with a dry run of the same field manager.
	"Flux with a HelmRelease": {"--server-side", "--force-conflicts", "--field-manager=helm-controller"},
	// Argo CD applies with `kubectl apply`, and compares with a three-way merge.
	"Argo CD": nil,
	// The same with ServerSideApply=true and ServerSideDiff=true.
	"Argo CD with server-side apply": {"--server-side", "--force-conflicts", "--field-manager=argocd-controller"},
}

// builtIn turns on the options that need no types besides Kubernetes' own.
const builtIn values = "{metrics: {enabled: true, operator: false}, page: {serve: service, host: page.example.org}}"

// testNoDrift: the tools find no difference after Kubernetes and the controller have written their fields, and find a
// change of a user.
func testNoDrift(t *testing.T) {
	controller := filepath.Join(t.TempDir(), "controller")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", controller, root+"/cmd/controller").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tool := range slices.Sorted(maps.Keys(deliveries)) {
		t.Run(tool, func(t *testing.T) {
			d := newDelivery(t, tool)
			d.kubectl(t, "apply", deliveries[tool]...)
			d.runController(t, controller)
			d.writeAsKubernetes(t)
			d.same(t, "after Kubernetes and the controller have written their fields")
			d.edit(t)
		})
	}
}

// delivery is the chart, applied by a tool.
type delivery struct {
	connection string // --kubeconfig
	manifest   string // the rendered objects
	objects    objects
	flags      []string
}

// newDelivery renders the chart as the tool does.
func newDelivery(t *testing.T, tool string) *delivery {
	t.Helper()
	d := &delivery{
		connection: "--kubeconfig=" + kubeconfig(t, server.Config(t)), manifest: filepath.Join(t.TempDir(), "all.yaml"),
		objects: render(t, builtIn), flags: deliveries[tool],
	}
	var all strings.Builder
	for key, o := range d.objects {
		if isHook(o) { // only `helm test` creates them
			delete(d.objects, key)
			continue
		}
		if strings.HasPrefix(tool, "Flux") {
			o.SetLabels(with(o.GetLabels(), "app.kubernetes.io/managed-by", "Helm"))
			o.SetAnnotations(with(o.GetAnnotations(), "meta.helm.sh/release-name", "fairlead"))
			o.SetAnnotations(with(o.GetAnnotations(), "meta.helm.sh/release-namespace", namespace))
		} else {
			o.SetAnnotations(with(o.GetAnnotations(), "argocd.argoproj.io/tracking-id", "fairlead:"+key))
		}
		all.WriteString("---\n" + text(o.Object) + "\n")
	}
	if err := os.WriteFile(d.manifest, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		args := []string{"delete", d.connection, "--ignore-not-found", "--filename=" + d.manifest}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, kubetest.Part(t, "kubectl"), args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return d
}

func with(m map[string]string, key, value string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func (d *delivery) kubectl(t *testing.T, command string, flags ...string) {
	t.Helper()
	args := append([]string{command, d.connection, "--filename=" + d.manifest}, flags...)
	if out, err := exec.CommandContext(t.Context(), kubetest.Part(t, "kubectl"), args...).CombinedOutput(); err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, out)
	}
}

// diff returns what `kubectl diff` prints.
func (d *delivery) diff(t *testing.T) string {
	t.Helper()
	args := append([]string{"diff", d.connection, "--filename=" + d.manifest, "--concurrency=4"}, d.flags...)
	out, err := exec.CommandContext(t.Context(), kubetest.Part(t, "kubectl"), args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: there are differences
		t.Fatalf("kubectl diff: %v: %s", err, out)
	}
	if err != nil && len(out) == 0 {
		t.Fatal("kubectl diff finds differences, and prints none")
	}
	return string(out)
}

func (d *delivery) same(t *testing.T, when string) {
	t.Helper()
	if got := d.diff(t); got != "" {
		t.Errorf("%s these objects differ:\n%s", when, got)
	}
}

// edit makes sure that the comparison finds a change.
func (d *delivery) edit(t *testing.T) {
	t.Helper()
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 7}}`))
	deployment := live(t, admin, d.objects[xdsServer])
	if err := admin.Patch(t.Context(), deployment, patch, client.FieldOwner("a user")); err != nil {
		t.Fatal(err)
	}
	if got := d.diff(t); !strings.Contains(got, "-  replicas: 7") {
		t.Errorf("a change of a user is not found: %q", got)
	}
}

// runController runs the controller until it has written what it writes into objects of the chart, and its own.
func (d *delivery) runController(t *testing.T, program string) {
	t.Helper()
	data := d.objects[settings].Object["data"].(map[string]any)
	var args []string
	for _, item := range at(d.objects[controller].Object, container+"args").([]any) {
		arg := item.(string)
		if name, value, ok := strings.Cut(arg, "=$("); ok {
			arg = name + "=" + data[strings.TrimSuffix(value, ")")].(string)
		}
		for _, listen := range []string{"--webhook-listen=", "--health-listen=", "--metrics-listen="} {
			if strings.HasPrefix(arg, listen) {
				arg = listen + freeport.Address(t)
			}
		}
		args = append(args, arg)
	}
	var log strings.Builder
	command := exec.CommandContext(t.Context(), program, append(args, d.connection)...)
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	err := proc.Wait(t.Context(), time.Minute, func(ctx context.Context) error { return d.written(ctx, t) })
	_ = command.Process.Kill()
	_ = command.Wait()
	if err != nil {
		t.Fatalf("%v: %s", err, log.String())
	}
}

// written returns nil if the controller has written all of its fields and objects.
func (d *delivery) written(ctx context.Context, t *testing.T) error {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		return err
	}
	hooks := d.objects[webhooks].DeepCopy()
	if err := admin.Get(ctx, client.ObjectKeyFromObject(hooks), hooks); err != nil {
		return err
	}
	if at(hooks.Object, "webhooks.0.clientConfig.caBundle") == nil {
		return errors.New("the webhook has no CA bundle")
	}
	var service corev1.Service
	if err := admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "gateway-public"}, &service); err != nil {
		return err
	}
	var installation corev1.ConfigMap
	key := client.ObjectKey{Namespace: namespace, Name: "fairlead-installation"}
	return admin.Get(ctx, key, &installation)
}

// writeAsKubernetes writes what controllers of Kubernetes write, which do not run here.
func (d *delivery) writeAsKubernetes(t *testing.T) {
	t.Helper()
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{controller, xdsServer, gateway} {
		o := live(t, admin, d.objects[key])
		count := at(o.Object, "spec.replicas")
		status := fmt.Appendf(nil, `{"status": {"observedGeneration": %d, "replicas": %v}}`, o.GetGeneration(), count)
		owner := client.FieldOwner("kube-controller-manager")
		if err := admin.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, status), owner); err != nil {
			t.Fatal(err)
		}
		if o.GetKind() != "Deployment" {
			continue
		}
		revision := []byte(`{"metadata": {"annotations": {"deployment.kubernetes.io/revision": "1"}}}`)
		if err := admin.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, revision), owner); err != nil {
			t.Fatal(err)
		}
	}
}
