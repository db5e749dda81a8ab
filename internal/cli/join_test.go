package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	agentedge "github.com/fairlead/fairlead/pkg/agent/edge"
)

// newCluster creates a Cluster that opts in.
func newCluster(t *testing.T, p *person, change ...func(*clusterv1.Cluster)) *clusterv1.Cluster {
	t.Helper()
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, p), "c1")
	for _, c := range change {
		c(cluster)
	}
	if err := p.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// bootstrapOf returns the bootstrap file of a Cluster.
func bootstrapOf(t *testing.T, p *person, key client.ObjectKey) []byte {
	t.Helper()
	secret := &corev1.Secret{}
	if err := p.Get(t.Context(), client.ObjectKey{Namespace: key.Namespace, Name: key.Name +
		v1alpha1.BootstrapSecretSuffix}, secret); err != nil {
		t.Fatal(err)
	}
	return secret.Data[v1alpha1.BootstrapFileKey]
}

func TestJoinPrintsOneCommand(t *testing.T) {
	p := newPerson(t)
	cluster := newCluster(t, p)
	args := []string{"join", "-n", cluster.Namespace, "c1"}
	p.must(t, []string{"edge-agent run --bootstrap /etc/fairlead/bootstrap.yaml"}, args...)
	file := string(bootstrapOf(t, p, client.ObjectKeyFromObject(cluster)))
	for form, want := range map[string][]string{
		"command": {file, "umask 077"},
		"systemd": {
			file, "chown fairlead /etc/fairlead/bootstrap.yaml", "[Service]",
			"ExecStart=/usr/local/bin/edge-agent run --envoy-external", "systemctl reload-or-restart edge-agent",
		},
		"static-pod": {
			file, "chown 65532:65532", "image: registry.example.com/edge:v1",
			"/etc/kubernetes/manifests/fairlead-edge.yaml", "--local-apiserver=127.0.0.1:6443",
		},
		"deployment": {
			"kubectl apply -f - <<", "kind: Deployment", "image: registry.example.com/edge:v1",
			"name: fairlead-edge-bootstrap",
		},
	} {
		out := p.must(t, want, append(args, "--form="+form, "--image=registry.example.com/edge:v1")...)
		check := exec.CommandContext(t.Context(), "sh", "-n")
		check.Stdin = strings.NewReader(out)
		if liveOutput, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: no shell reads it: %v: %s", form, err, liveOutput)
		}
		if strings.Contains(out, "image: fairlead-edge\n") {
			t.Errorf("%s: it has the image of the manifest", form)
		}
	}
}

// TestTheDeploymentOfJoinIsApplied pipes the output of join into a shell with the real kubectl, as a user would.
func TestTheDeploymentOfJoinIsApplied(t *testing.T) {
	p, workload := newPerson(t), newPersonOf(t, target.Config(t))
	cluster := newCluster(t, p)
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	out := p.must(
		t, nil, "join", "-n", cluster.Namespace, "c1", "--form=deployment", "--image=registry.example.com/edge:v1",
	)
	for range 2 { // again, for a new token
		sh := exec.CommandContext(t.Context(), "sh", "-eu")
		sh.Stdin = strings.NewReader(
			"kubectl() { " + bin + "/kubectl --kubeconfig=" + workload.kubeconfig + " --context=good \"$@\"; }\n" + out,
		)
		sh.Env = append(os.Environ(), "HOME="+t.TempDir())
		if liveOutput, err := sh.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, liveOutput)
		}
	}
	var deployment appsv1.Deployment
	var secret corev1.Secret
	kubeClient := appsClient(t, target.Config(t))
	for _, err := range []error{
		kubeClient.Get(t.Context(), client.ObjectKey{Namespace: "fairlead-edge", Name: "fairlead-edge"}, &deployment),
		kubeClient.Get(t.Context(), client.ObjectKey{Namespace: "fairlead-edge", Name: "fairlead-edge-bootstrap"}, &secret),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	file, err := agentedge.ParseBootstrapFile(secret.Data[v1alpha1.BootstrapFileKey])
	if err != nil || file.ID == "" || file.Token == "" || file.CA == "" {
		t.Errorf("no edge can read the Secret: %v", err)
	}
	if name := deployment.Spec.Template.Spec.Volumes[1].Secret.SecretName; name != secret.Name {
		t.Errorf("the Deployment reads %s", name)
	}
}

func TestJoinReportsTheReason(t *testing.T) {
	p := newPerson(t)
	cluster := newCluster(t, p)
	none := newCluster(t, p, func(c *clusterv1.Cluster) { c.Labels = nil })
	off := newCluster(t, p, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
	paused := newCluster(t, p, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	long := newCluster(t, p, func(c *clusterv1.Cluster) { c.Name = strings.Repeat("long", 16) })
	p.mustNot(t, "Cluster c9 not found in namespace "+cluster.Namespace, "join", "-n", cluster.Namespace, "c9")
	p.mustNot(t, "use --enable", "join", "-n", none.Namespace, "c1")
	p.mustNot(t, "use --enable", "join", "-n", off.Namespace, "c1")
	p.mustNot(t, "the Cluster is not paused", "join", "-n", paused.Namespace, "c1", "--timeout=1s")
	p.mustNot(t, "is not accepted", "join", "-n", long.Namespace, long.Name)
	p.mustNot(t, "must be command, systemd", "join", "-n", cluster.Namespace, "c1", "--form=helm")
	p.mustNot(t, "is not an image reference", "join", "-n", cluster.Namespace, "c1", "--form=deployment", "--image=a b")

	for _, c := range []*clusterv1.Cluster{none, off} {
		p.must(t, []string{"edge-agent run"}, "join", "-n", c.Namespace, "c1", "--enable")
		kubetest.Eventually(t, "it has opted in", func() error {
			tunnel := &v1alpha1.Tunnel{}
			if err := p.Get(t.Context(), client.ObjectKeyFromObject(c), tunnel); err != nil {
				return err
			}
			if !apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionAccepted) {
				return errors.New("it is not accepted")
			}
			return nil
		})
	}
}
