package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/kubetest"
	agentedge "github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/model"
)

// target is the management cluster to which Clusters are moved. It runs the real controller of its own installation.
var (
	target = kubetest.Server{
		CRDs: true,
		End:  func() error { return <-targetEnded },
		Prepare: func(ctx context.Context, config *rest.Config) error {
			return startControllerOf(ctx, config, "tunnels.example.org", targetEnded)
		},
	}
	targetEnded = make(chan error, 1)
)

// edgeVariable makes the test program act as the edge-agent of a Pod. The kubelet of these tests sets it.
const edgeVariable = "FAIRLEAD_TEST_EDGE"

// playEdge simulates `edge-agent join`: it reads the bootstrap file, rejects an invalid one, stores it in the state
// folder, which must exist, and reports success.
func playEdge(args []string, in io.Reader, out, errs io.Writer) int {
	data, err := io.ReadAll(in)
	if err == nil {
		err = func() error {
			if len(args) != 2 || args[0] != "join" || !strings.HasPrefix(args[1], "--state-dir=") {
				return fmt.Errorf("called with %v", args)
			}
			if _, err := agentedge.ParseBootstrapFile(data); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(strings.TrimPrefix(args[1], "--state-dir="), "joined.yaml"), data, 0o600)
		}()
	}
	if err != nil {
		fmt.Fprintln(errs, "edge-agent:", err)
		return 1
	}
	fmt.Fprintln(out, "joined it as edge-x")
	return 0
}

func appsClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// edgePod creates a running Pod of an edge with a state folder.
func edgePod(t *testing.T, p *person, namespace, name, node, stateDir string, change ...func(*corev1.PodSpec)) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	if err := p.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name,
			Labels:    map[string]string{"app.kubernetes.io/name": "fairlead-edge"},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "envoy", Image: "none", Command: []string{"false"}},
			{Name: "agent", Image: "none", Command: []string{os.Args[0]}, Args: []string{"run", "--state-dir=" + stateDir}},
		}},
	}
	for _, c := range change {
		c(&pod.Spec)
	}
	if err := p.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	if err := p.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// workloadKubeconfig stores a kubeconfig of a server for a Cluster. The controller does not change it, because it lacks
// Cluster API's label.
func workloadKubeconfig(t *testing.T, p, workload *person, key client.ObjectKey) {
	t.Helper()
	data, err := os.ReadFile(workload.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	data = []byte(strings.Replace(string(data), "current-context: other", "current-context: good", 1))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name + "-kubeconfig"},
		Data:       map[string][]byte{"value": data},
	}
	if err := p.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// on returns an edge on a host.
func on(host string, gateways ...v1alpha1.EdgeGatewayStatus) v1alpha1.EdgeStatus {
	e := edgeStatus(model.NewNodeName(), gateways...)
	e.Host = host
	return e
}

func TestMovePrepare(t *testing.T) {
	p, to := newPerson(t), newPersonOf(t, target.Config(t))
	up := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	key := serve(t, p, on("pod-a", up), on("pod-b", up), on("machine", up), on("away"))
	source := &v1alpha1.Tunnel{}
	if err := p.Get(t.Context(), key, source); err != nil {
		t.Fatal(err)
	}
	revoke := func(node string) {
		t.Helper()
		before := source.DeepCopy()
		source.Spec.RevokedEdges = append(source.Spec.RevokedEdges, node)
		if err := p.Patch(t.Context(), source, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	revoke("edge-revoked")
	edges := kubetest.NewNamespace(t, p)
	node, state := startKubelet(t, p), t.TempDir()
	edgePod(t, p, edges, "pod-a", node, state)
	edgePod(t, p, edges, "pod-b", node, filepath.Join(state, "not-there"))
	// in a namespace that the command does not name
	edgePod(t, p, kubetest.NewNamespace(t, p), "somebody", node, t.TempDir())
	workloadKubeconfig(t, p, p, key) // the management cluster is also the workload cluster

	args := []string{
		"move",
		"prepare",
		"-n",
		key.Namespace,
		key.Name,
		"--to-kubeconfig=" + to.kubeconfig,
		"--to-kubeconfig-context=good",
		"--edge-namespace=" + edges,
	}
	out, err := p.does(t, append(args, "--timeout=10s")...)
	if err == nil || !strings.Contains(err.Error(), "(host pod-b)") || !strings.Contains(err.Error(), "(host machine)") ||
		strings.Contains(err.Error(), "away") {
		t.Fatalf("got %v, and\n%s", err, out)
	}
	prepared := &v1alpha1.Tunnel{}
	if err := to.Get(t.Context(), key, prepared); err != nil || prepared.Spec.ID != source.Spec.ID ||
		prepared.Annotations[v1alpha1.PreparedAnnotation] == "" {
		t.Fatalf("the target has %v, %v", prepared.ObjectMeta, err)
	}
	if got := prepared.Spec.RevokedEdges; !slices.Equal(got, source.Spec.RevokedEdges) {
		t.Errorf("the target revokes %v, and the source %v", got, source.Spec.RevokedEdges)
	}
	file := string(bootstrapOf(t, to, key))
	if got, err := os.ReadFile(filepath.Join(state, "joined.yaml")); err != nil || string(got) != file {
		t.Errorf("the edge was given %d bytes, %v", len(got), err)
	}
	for _, want := range []string{
		"Pod " + edges + "/pod-a: joined it as edge-x",
		"Pod " + edges + "/pod-b: running edge-agent join: ", "no such file or directory",
		"edge-agent join <<'EOF'\n" + file + "EOF", "tunnelDomain: tunnels.example.org",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "somebody") || strings.Contains(err.Error(), "fl1.") {
		t.Errorf("it went too far:\n%s", out)
	}

	revoke("edge-revoked-later")
	takesUp(t, p, to, key, args)
	if err := to.Get(t.Context(), key, prepared); err != nil {
		t.Fatal(err)
	}
	if got := prepared.Spec.RevokedEdges; !slices.Equal(got, source.Spec.RevokedEdges) {
		t.Errorf("later the target revokes %v, and the source %v", got, source.Spec.RevokedEdges)
	}
	p.must(t, []string{"ready: every edge"}, args...) // nothing is left to do
}

// takesUp joins the remaining edges by hand while the command runs again.
func takesUp(t *testing.T, p, to *person, key client.ObjectKey, args []string) {
	t.Helper()
	prepared := &v1alpha1.Tunnel{}
	setStatus(t, to, key, func(s *v1alpha1.TunnelStatus) { s.Edges = []v1alpha1.EdgeStatus{on("pod-a"), on("pod-b")} })
	ended := make(chan error, 1)
	go func() {
		_, err := p.does(t, append(args, "--for=48h")...)
		ended <- err
	}()
	kubetest.Eventually(t, "the target waits for longer", func() error {
		if err := to.Get(t.Context(), key, prepared); err != nil {
			return err
		}
		if until, err := time.Parse(time.RFC3339, prepared.Annotations[v1alpha1.PreparedAnnotation]); err != nil ||
			time.Until(until) < 47*time.Hour {
			return fmt.Errorf("until %s, %w", until, err)
		}
		return nil
	})
	var gateways []v1alpha1.EdgeGatewayStatus
	machine := func(change func(*v1alpha1.EdgeStatus)) {
		setStatus(t, p, key, func(s *v1alpha1.TunnelStatus) {
			change(&s.Edges[slices.IndexFunc(s.Edges, func(e v1alpha1.EdgeStatus) bool { return e.Host == "machine" })])
		})
	}
	machine(func(e *v1alpha1.EdgeStatus) { gateways, e.Gateways = e.Gateways, nil })
	select {
	case err := <-ended:
		t.Fatalf("an edge that is away for a moment is no longer waited for: %v", err)
	case <-time.After(4 * management.PollInterval):
	}
	machine(func(e *v1alpha1.EdgeStatus) { e.Gateways = gateways })
	setStatus(t, to, key, func(s *v1alpha1.TunnelStatus) { s.Edges = append(s.Edges, on("machine")) })
	if err := <-ended; err != nil {
		t.Error(err)
	}
	setStatus(t, to, key, func(s *v1alpha1.TunnelStatus) {
		s.Edges = []v1alpha1.EdgeStatus{on("pod-a"), on("pod-b"), on("machine")}
	})
}

func TestMovePrepareRejects(t *testing.T) {
	p, to := newPerson(t), newPersonOf(t, target.Config(t))
	up := v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 2}
	key, idle := serve(t, p, on("a", up)), serve(t, p, on("b"))
	into := []string{"--to-kubeconfig=" + to.kubeconfig, "--to-kubeconfig-context=good"}
	prepare := func(key client.ObjectKey, more ...string) []string {
		return append([]string{"move", "prepare", "-n", key.Namespace, key.Name}, more...)
	}
	p.mustNot(t, "to-kubeconfig", prepare(key)...)
	p.mustNot(t, "Tunnel c9 not found", prepare(client.ObjectKey{Namespace: key.Namespace, Name: "c9"}, into...)...)
	p.mustNot(t, "no edge of the Tunnel", prepare(idle, into...)...)
	p.mustNot(
		t,
		"in which the Cluster is already",
		prepare(key, "--to-kubeconfig="+p.kubeconfig, "--to-kubeconfig-context=good")...)
	p.mustNot(t, "less than the minute", prepare(key, append(into, "--for=1s")...)...)

	other := &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubetest.NewNamespace(t, to), Name: key.Name},
		Spec:       v1alpha1.TunnelSpec{ID: model.NewID()},
	}
	if err := to.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	p.mustNot(t, "another id", prepare(key, append(into, "--to-namespace="+other.Namespace)...)...)
}
