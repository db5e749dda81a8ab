package kubeconfigs

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// changed bounds how long Cluster API may take to add or remove one machine.
const changed = 5 * time.Minute

// kept proves that everything that Cluster API does to a running workload cluster works through the tunnel.
func (m *member) kept(t *testing.T) {
	that(
		t, "a port-forward to etcd works over WebSocket, KCP's first choice",
		func(t *testing.T) { m.portForward(t, "true") },
	)
	that(
		t, "a port-forward to etcd works over SPDY, KCP's fallback",
		func(t *testing.T) { m.portForward(t, "false") },
	)
	that(t, "KCP scales from one machine to three, each with an edge and an etcd member", m.scalesUp)
	that(t, "a worker joins the workload cluster", m.workerJoins)
	that(t, "a worker reports its boot", m.workersReport)
	that(
		t, "a MachineHealthCheck detects a failed machine through the tunnel, and KCP replaces it",
		m.isRepaired,
	)
	if m.mode == v1alpha1.KubeconfigModeConnect {
		m.rollsOut(t)
	}
	that(t, "KCP scales from three machines to one and removes their etcd members", m.scalesDown)
	if m.mode == v1alpha1.KubeconfigModeSNI {
		m.upgradesInPlace(t)
	}
}

// portForward connects to etcd with TLS through a port-forward of kubectl, which uses the same dialers as KCP.
// kubectl's own variable selects the protocol, and kubectl's log proves which one was used: WebSocket begins with GET,
// SPDY with POST.
func (m *member) portForward(t *testing.T, webSockets string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kubeconfig, err := m.Kubeconfig(ctx)
	must(t, err)
	machines, err := m.machines(ctx)
	must(t, err)
	pod := "pod/etcd-" + machines[0].Status.NodeRef.Name
	cmd, err := m.lab.KubectlCommand(ctx, kubeconfig, "--namespace=kube-system", "port-forward", "--v=7", pod, ":2379")
	must(t, err)
	output, err := os.CreateTemp(t.TempDir(), "kubectl")
	must(t, err)
	defer func() { _ = output.Close() }()
	cmd.Env = append(cmd.Env, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+webSockets)
	cmd.Stderr = output
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("kubectl port-forward: %v", err)
	}
	var port int
	if _, err := fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d ->", &port); err != nil {
		t.Fatalf("kubectl says %q: %v", line, err)
	}
	must(t, m.speakToEtcd(ctx, fmt.Sprintf("127.0.0.1:%d", port)))
	text, err := os.ReadFile(output.Name())
	must(t, err)
	method := map[string]string{"true": `verb="GET"`, "false": `verb="POST"`}[webSockets]
	if !hasLine(string(text), "/portforward", method) {
		t.Errorf("no line of kubectl's output has %s for port-forward:\n%s", method, text)
	}
}

// speakToEtcd completes a TLS handshake with the etcd of the workload cluster, and fails with any other server.
func (m *member) speakToEtcd(ctx context.Context, address string) error {
	secret, err := m.Secret(ctx, "-etcd")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["tls.crt"])
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return err
	}
	conn, err := m.lab.Network.Management.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "localhost", Certificates: []tls.Certificate{pair}}).
		HandshakeContext(ctx)
}

// hasLine reports whether one line contains all parts.
func hasLine(text string, parts ...string) bool {
	for line := range strings.Lines(text) {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}

func (m *member) scalesUp(t *testing.T) {
	must(t, m.scale(t.Context(), 3))
	within(t, 2*changed, "scaled_up_s", m.hasMachines(3))
	within(t, changed, "", m.hasEdges(3))
}

// hasEdges returns a condition that is nil once the status of the Tunnel has the given number of live edges.
func (m *member) hasEdges(count int) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := m.Tunnel(ctx)
		if err != nil {
			return err
		}
		live := 0
		for _, edge := range tunnel.Status.Edges {
			if len(edge.Gateways) > 0 {
				live++
			}
		}
		if live != count {
			return fmt.Errorf("%d edges are live, not %d: %+v", live, count, tunnel.Status.Edges)
		}
		return nil
	}
}

func (m *member) workerJoins(t *testing.T) {
	m.apply(t, workersYAML)
	within(t, changed, "worker_s", func(ctx context.Context) error {
		workers, err := m.workers(ctx)
		if err != nil {
			return err
		}
		if len(workers) != 1 || !workers[0].Status.NodeRef.IsDefined() {
			return fmt.Errorf("%d workers, the first without a Node", len(workers))
		}
		return isCondition(workers[0].Status.Conditions, clusterv1.MachineNodeReadyCondition, metav1.ConditionTrue)
	})
}

// workers returns the Machines that do not belong to the control plane.
func (m *member) workers(ctx context.Context) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := m.lab.Management.Client.List(ctx, list, client.InNamespace(m.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: m.Name}, client.HasLabels{clusterv1.MachineDeploymentNameLabel})
	return list.Items, err
}

func (m *member) isRepaired(t *testing.T) {
	m.apply(t, healthCheckYAML)
	check := &clusterv1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}}
	within(t, time.Minute, "", func(ctx context.Context) error {
		if err := m.lab.Management.Client.Get(ctx, client.ObjectKeyFromObject(check), check); err != nil {
			return err
		}
		if healthy := check.Status.CurrentHealthy; healthy == nil || *healthy != 3 {
			return fmt.Errorf("the MachineHealthCheck doesn't see three healthy machines: %+v", check.Status)
		}
		return nil
	})
	machines, err := m.machines(t.Context())
	must(t, err)
	victim := machines[len(machines)-1].Name
	for _, machine := range m.lab.Cloud.Machines(m.NamespacedName) {
		if machine.Name == victim {
			machine.Destroy(t.Context())
		}
	}
	within(t, 2*changed, "repaired_s", func(ctx context.Context) error {
		machines, err := m.machines(ctx)
		if err != nil {
			return err
		}
		for i := range machines {
			if machines[i].Name == victim {
				return fmt.Errorf("the dead machine %s is still there", victim)
			}
		}
		return m.hasMachines(3)(ctx)
	})
	must(t, m.lab.Management.Client.Delete(t.Context(), check))
}

func (m *member) scalesDown(t *testing.T) {
	must(t, m.scale(t.Context(), 1))
	within(t, 2*changed, "scaled_down_s", m.hasMachines(1))
	within(t, time.Minute, "", m.RemoteConnectionProbe)
}
