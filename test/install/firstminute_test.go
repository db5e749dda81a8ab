package install

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// installCommand finds the command in docs/install.md, over several lines.
var installCommand = regexp.MustCompile(`(?m)^helm install fairlead oci://(?:.*\\\n)*.*$`)

// Tokens and certificates live for a short time, so that the test outlives them. Rollouts are observed for a shorter
// time too.
const (
	tokenLife = time.Minute
	leafLife  = 2 * time.Minute
	soak      = 15 * time.Second
)

// shortDrain is how long a gateway that ends waits for its connections, in the short form. Cluster API's do not end by
// themselves.
const shortDrain = 5 * time.Second

// documented returns the command of docs/install.md. The registry of the test has no TLS.
func (w *World) documented(t *testing.T) string {
	t.Helper()
	command := installCommand.FindString(w.document(t, "install.md"))
	if command == "" {
		t.Fatal("docs/install.md has no command helm install fairlead")
	}
	return command + " --plain-http"
}

// install returns the command of docs/install.md with the times of this test.
func (w *World) install(t *testing.T) string {
	t.Helper()
	command := w.documented(t) + fmt.Sprintf(" --set 'controller.args={--token-lifetime=%s,--leaf-lifetime=%s,"+
		"--ca-overlap=%s,--rollout-soak=%s}'", tokenLife, leafLife, leafLife, soak)
	if testing.Short() {
		command += fmt.Sprintf(" --set 'gateway.args={--drain-timeout=%s}'", shortDrain)
	}
	return command
}

// upgrade changes values of the installation.
func (w *World) upgrade(t *testing.T, values string) {
	t.Helper()
	w.run(t, w.management, "helm upgrade fairlead oci://"+repository+"/charts/fairlead --plain-http --namespace "+system+
		" --reuse-values "+values)
}

// proveRejections leaves Cluster API installed.
func proveRejections(t *testing.T, w *World) {
	command := w.install(t)
	reject := func(script string, parts ...string) {
		t.Helper()
		_, stderr, err := w.try(t.Context(), w.management, script)
		lines := strings.Split(stderr, "\n")
		last := lines[len(lines)-1]
		for _, part := range parts {
			if err == nil || !strings.HasPrefix(last, "Error:") || !strings.Contains(last, part) {
				t.Errorf("helm fails with %v: %q; want one line with %q", err, stderr, part)
			}
		}
	}
	began := time.Now()
	without := strings.ReplaceAll(command, "--set tunnelDomain=tunnels.example.com", "")
	reject(without, "tunnelDomain", "--set tunnelDomain=")
	measured("minute_rejected_s", time.Since(began).Seconds())
	reject(command, "Cluster API", "clusterctl init")
	if left := ask(t, w.management, "get", "namespace", system, "--ignore-not-found", "--output=name"); left != "" {
		// Helm creates the namespace before it renders.
		ask(t, w.management, "delete", left)
	}
	w.installClusterAPI(t)
}

// proveFirstMinute measures from the command on. The load balancer has no address until Helm has returned, and the
// public name does not resolve until a user has read that it is missing.
func proveFirstMinute(t *testing.T, w *World) {
	w.createCluster(t, w.workload.APIServer)
	w.keepInventory(t)
	ask(t, w.workload, "create", "namespace", edges)
	ask(t, w.workload, "label", "namespace", edges, "pod-security.kubernetes.io/enforce=restricted")
	release := w.management.HoldBalancers()
	defer release()
	began := time.Now()
	at := func(event string) {
		t.Logf("%s after %.1f s", event, time.Since(began).Seconds())
		measured("minute_"+event+"_s", time.Since(began).Seconds())
	}
	var group sync.WaitGroup
	group.Go(func() {
		if becomes(t, w.hasCA) {
			at("ca")
		}
	})
	group.Go(func() {
		if becomes(t, w.gatewaysReady) {
			at("gateways_ready")
		}
	})
	notes := w.run(t, w.management, w.install(t))
	at("helm_returned")
	if !strings.Contains(notes, publicName) {
		t.Errorf("the notes do not have the DNS record of %s:\n%s", publicName, notes)
	}
	group.Wait()
	if t.Failed() {
		return
	}
	if address := ask(t, w.management, "--namespace="+system, "get", "service", "gateway-public",
		"--output=jsonpath={.status.loadBalancer}"); address != "{}" {
		t.Fatalf("the load balancer is not pending: %s", address)
	}
	eventually(t, w.statusBegins("PublicAddressPending: "+publicName))
	at("status_pending")
	release()
	eventually(t, w.statusBegins("PublicAddressPending: "+publicName, cluster.FirstBalancer.String()))
	at("balancer_known")
	w.namePublic(t, publicName)
	w.nameGateway(t)
	w.followNotes(t, notes)
	at("joined")
	eventually(t, w.kubectlWorks)
	at("kubectl_works")
	eventually(t, func(ctx context.Context) error {
		if w.statusBegins("PublicAddressPending")(ctx) == nil {
			return errors.New("fairlead status still reports the public address as pending")
		}
		return nil
	})
	at("status_resolved")
	ask(t, w.workload, "--namespace="+edges, "rollout", "status", "deployment/fairlead-edge", "--timeout=280s")
	ask(t, w.management, "--namespace="+shops, "wait", "tunnel/paris", "--for=condition=Ready", "--timeout=280s")
	w.dialWorkload(t)
}

// proveClusterAPI waits for a condition that Cluster API sets after it has connected. After a failure, as before there
// was a tunnel, it tries again half a minute later.
func proveClusterAPI(t *testing.T, w *World) {
	ask(t, w.management, "--namespace="+shops, "wait", "cluster/paris", "--for=condition=RemoteConnectionProbe",
		"--timeout=280s")
}

// becomes is eventually for goroutines. It returns whether the condition was met.
func becomes(t *testing.T, condition func(context.Context) error) bool {
	t.Helper()
	err := proc.Wait(t.Context(), commandTime, condition)
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func (w *World) hasCA(ctx context.Context) error {
	return w.management.Client.Get(ctx, types.NamespacedName{Namespace: system, Name: "fairlead-ca"}, &corev1.Secret{})
}

func (w *World) gatewaysReady(ctx context.Context) error {
	var gateways appsv1.StatefulSet
	name := types.NamespacedName{Namespace: system, Name: "gateway"}
	if err := w.management.Client.Get(ctx, name, &gateways); err != nil {
		return err
	}
	if want := *gateways.Spec.Replicas; gateways.Status.ReadyReplicas != want {
		return fmt.Errorf("%d of %d gateways are ready", gateways.Status.ReadyReplicas, want)
	}
	return nil
}

// statusBegins returns a condition for the first line of fairlead status.
func (w *World) statusBegins(text string, more ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, stderr, err := w.try(ctx, w.management, "fairlead status -A")
		line := firstLine(out)
		if !strings.HasPrefix(line, text) {
			return fmt.Errorf("fairlead status begins with %q, not %q (%w: %s)", line, text, err, stderr)
		}
		for _, part := range more {
			if !strings.Contains(line, part) {
				return fmt.Errorf("fairlead status begins with %q, without %q", line, part)
			}
		}
		return nil
	}
}

// joinCommand finds the first of the two commands in the notes: what prints the command for an edge, and what runs it.
var joinCommand = regexp.MustCompile(`(?m)^ *(fairlead join .*) \| KUBECONFIG=WORKLOAD_KUBECONFIG sh$`)

// followNotes runs the two commands of Helm's notes.
func (w *World) followNotes(t *testing.T, notes string) {
	t.Helper()
	found := joinCommand.FindStringSubmatch(notes)
	if found == nil || !strings.Contains(notes, "fairlead status -A") {
		t.Fatalf("the notes do not have the next two commands:\n%s", notes)
	}
	join := strings.NewReplacer("NAMESPACE", shops, "CLUSTER", "paris").Replace(found[1])
	w.run(t, w.workload, w.run(t, w.management, join))
}

// kubectlWorks lists the namespaces of the workload cluster as a user does, through the tunnel.
func (w *World) kubectlWorks(ctx context.Context) error {
	if err := w.reach(ctx); err != nil {
		return err
	}
	out, stderr, err := w.try(ctx, w.management, `
fairlead kubeconfig -n shops paris --via=address >"$HOME/paris"
kubectl --kubeconfig="$HOME/paris" get ns`)
	if err != nil || !strings.Contains(out, edges) {
		return fmt.Errorf("kubectl get ns through the tunnel: %w: %s%s", err, out, stderr)
	}
	return nil
}
