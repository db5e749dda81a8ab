package networks

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

// killPause is more than the status of Tunnels is behind.
const killPause = 5 * time.Second

// mixed is an installation with two hosted control planes: shop, with machines in three regions, and bank, with
// machines in one region that has the addresses of the first one of shop.
type mixed struct {
	*world.World
	shop, bank *controlPlane

	oslo, rome, lima *region // of shop
	vault            *region // of bank
}

// TestRealKubelets proves what TestNetworks proves, and more, with real machines: kubelets that the real kubeadm has
// joined through edges, containers, Services and Pods.
func TestRealKubelets(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes: make verify-networks-cluster")
	}
	proof.Need(t)
	_, err := workspace.FindClusterParts()
	must(t, err)
	m := &mixed{World: world.Start(t, &proof, lab.Options{
		Bootstrap: true, WithoutWorkload: true, Gateways: 2,
		ControllerFlags: []string{"--apiserver-cidrs=" + netns.ManagementPrefix().String()},
	})}
	m.build(t)
	m.joins(t)
	if t.Failed() {
		return // all that follows needs Nodes
	}
	m.serves(t)
	m.keeps(t)
	m.loses(t)
	m.moves(t)
	m.Logs(t)
}

// regions returns all regions.
func (m *mixed) regions() []*region { return []*region{m.oslo, m.rome, m.lima, m.vault} }

// build starts control planes, networks, and an edge of each network on a machine of its own.
func (m *mixed) build(t *testing.T) {
	m.shop, m.bank = newKubeadmHosted(t, m.World, "shop", 100), newKubeadmHosted(t, m.World, "bank", 101)
	prefix := func(n byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, n, 0}), 24) }
	m.oslo = &region{of: m.shop, name: "oslo", prefix: prefix(1), first: 16}
	m.rome = &region{of: m.shop, name: "rome", prefix: prefix(2), first: 32}
	m.lima = &region{of: m.shop, name: "lima", prefix: prefix(3), first: 48}
	m.vault = &region{of: m.bank, name: "vault", prefix: prefix(1), first: 16}
	guest, err := cluster.GuestImage(t.Context())
	must(t, err)
	for _, r := range m.regions() {
		r.announce(t)
	}
	must(t, m.shop.Enrol(t.Context()))
	must(t, m.bank.Enrol(t.Context()))
	that(t, "networks with the addresses of another Cluster's are ready once their edges have enrolled",
		func(t *testing.T) {
			began := time.Now()
			must(t, m.each(t.Context(), func(ctx context.Context, r *region) error { return r.start(ctx, guest) }))
			for _, r := range m.regions() {
				eventually(t, networkIs(m.World, r.name, v1alpha1.ConditionReady, metav1.ConditionTrue, ""))
			}
			measured("regions_ready_s", time.Since(began).Seconds())
		})
}

// each calls a function for all regions at the same time.
func (m *mixed) each(ctx context.Context, f func(context.Context, *region) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range m.regions() {
		group.Go(func() error {
			if err := f(ctx, r); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// nameServers is CoreDNS on each machine, because Pods reach no Pod of another network: each asks its own.
const nameServers = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
  - {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        ready :8181
        kubernetes cluster.local in-addr.arpa {
            ttl 5
        }
        forward . /etc/resolv.conf
        cache 5
    }
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      terminationGracePeriodSeconds: 1
      containers:
        - name: coredns
          image: registry.test/coredns:lab
          args: [-conf, /etc/coredns/Corefile]
          readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
          volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  selector: {k8s-app: kube-dns}
  internalTrafficPolicy: Local
  ports:
    - {name: dns, port: 53, protocol: UDP}
    - {name: dns-tcp, port: 53, protocol: TCP}
`

// shell returns a Pod on a machine that serves the name of the machine, and runs commands.
func shell(node string) string {
	return strings.NewReplacer("NODE_NAME", node, "GUEST", guestImage).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: shell-NODE_NAME, namespace: default, labels: {app: shell}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: NODE_NAME}
  containers:
    - name: shell
      image: GUEST
      args: [serve, ":8080"]
      readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
      env:
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
`)
}

// joins proves how machines become Nodes.
func (m *mixed) joins(t *testing.T) {
	for _, h := range []*controlPlane{m.shop, m.bank} {
		must(t, h.install(t.Context(), nameServers))
	}
	that(t, "a machine without another way out joins through an edge, with the bootstrap data of Cluster API",
		func(t *testing.T) {
			began := time.Now()
			must(t, m.each(t.Context(), func(ctx context.Context, r *region) error {
				return r.addNode(ctx, r.name+"-1", r == m.oslo) // in oslo through an edge of its own
			}))
			measured("nodes_ready_s", time.Since(began).Seconds())
		})
	that(t, "a machine reaches the public port of the gateways, and nothing else outside of its network", m.confined)
	that(t, "Pods start in every network, also with the same addresses in another", func(t *testing.T) {
		for _, r := range m.regions() {
			must(t, r.of.install(t.Context(), shell(r.name+"-1")))
		}
		for _, r := range m.regions() {
			must(t, proc.Wait(t.Context(), time.Minute, r.of.runs("default", "shell-"+r.name+"-1")))
		}
	})
	that(t, "an edge in a DaemonSet and one in a static Pod join their networks", m.podForms)
}

// confined checks what a machine reaches. A machine outside reaches the same addresses, so they do answer.
func (m *mixed) confined(t *testing.T) {
	const port = ":7777"
	elsewhere := netns.WorkloadAddress.String() + port
	listener, err := m.Network.Workload.Listen(t.Context(), elsewhere)
	must(t, err)
	defer func() { _ = listener.Close() }()
	outside, err := m.AddSite(t.Context(), "outside")
	must(t, err)
	dial := func(from *netns.Namespace, address string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		conn, err := from.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	gateway := netip.AddrPortFrom(m.Network.PublicAddress(0), netns.PublicPort).String()
	must(t, dial(outside.Namespace, elsewhere))
	for _, r := range m.regions() {
		machine := r.node(r.name + "-1").Namespace
		must(t, dial(machine, gateway))
		for _, address := range []string{elsewhere, m.Management.Endpoint.String()} {
			if dial(machine, address) == nil {
				t.Errorf("a machine in %s reaches %s", r.name, address)
			}
		}
	}
	if dial(outside.Namespace, netip.AddrPortFrom(m.oslo.node("oslo-1").Address, kube.KubeletPort).String()) == nil {
		t.Error("a machine outside reaches a kubelet")
	}
}

// podForms runs the commands that fairlead network join prints for edges in Pods.
func (m *mixed) podForms(t *testing.T) {
	must(t, m.rome.loadEdge(t.Context()))
	must(t, m.lima.loadEdge(t.Context()))
	rome, lima := m.rome.node("rome-1"), m.lima.node("lima-1")
	const folder = "install -d -m 0755 -o 65532 -g 65532 /var/lib/fairlead"
	_, err := rome.Run(t.Context(), "sh", "-c", folder)
	must(t, err)
	listen := "0.0.0.0:6443"
	apply, err := m.rome.join(t.Context(), "daemonset", listen, "--image="+edgeImage, "--node-selector=site=rome")
	must(t, err)
	must(t, m.sh(t.Context(), m.shop, apply))
	manifest, err := m.lima.join(t.Context(), "static-pod", listen, "--image="+edgeImage)
	must(t, err)
	_, err = lima.Machine.Run(t.Context(), manifest, "sh")
	must(t, err)
	began := time.Now()
	for _, network := range []string{"rome", "lima"} {
		must(t, proc.Wait(t.Context(), 2*time.Minute, m.tunnels(network+v1alpha1.NetworkTunnelSuffix, 2)))
	}
	must(t, proc.Wait(t.Context(), time.Minute, m.shop.runs("kube-system", "fairlead-edge-lima-1")))
	measured("edge_pods_s", time.Since(began).Seconds())
	pods := &corev1.PodList{}
	must(t, m.shop.APIServer.Client.List(t.Context(), pods, client.InNamespace(edgePods)))
	if len(pods.Items) != 1 || pods.Items[0].Spec.NodeName != "rome-1" {
		t.Errorf("the DaemonSet has %d Pods, want one on rome-1: %+v", len(pods.Items), pods.Items)
	}
	// From here on the machine needs no other one: its static Pod starts without an apiserver.
	must(t, m.lima.addEndpoint(t.Context(), &lima.Machine))
}

// tunnels returns a condition that is nil once a Tunnel has edges with tunnels.
func (m *mixed) tunnels(name string, edges int32) func(context.Context) error {
	return (&fleet{World: m.World}).tunnels(name, edges)
}

// sh runs a command as the administrator of a Cluster.
func (m *mixed) sh(ctx context.Context, h *controlPlane, command string) error {
	cmd, err := m.KubectlCommand(ctx, h.Admin)
	if err != nil {
		return err
	}
	shell := m.Network.Management.Command(ctx, "sh", "-eu")
	shell.Env = append(cmd.Env, "PATH="+m.Parts.Real+":"+os.Getenv("PATH"))
	shell.Stdin = strings.NewReader(command)
	if out, err := shell.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// serves proves what the apiserver does with Nodes, and Pods with the apiserver.
func (m *mixed) serves(t *testing.T) {
	that(t, "a Pod reaches its apiserver at 10.96.0.1 and by the name kubernetes.default.svc", func(t *testing.T) {
		for _, r := range m.regions() {
			for _, host := range []string{"10.96.0.1", "kubernetes.default.svc"} {
				eventually(t, r.says("v1.", "exec", "shell-"+r.name+"-1", "--", "/guest", "api", host))
			}
		}
	})
	that(t, "exec, logs and port-forward reach the right machine", func(t *testing.T) {
		for _, r := range m.regions() {
			eventually(t, r.execs)
			eventually(t, r.logs)
			eventually(t, r.forwards)
		}
	})
	that(t, "a webhook in rome decides", func(t *testing.T) {
		must(t, m.installService(t.Context(), "hook", hosted.HookPort, "rome-1", `[webhook, "denied in rome"]`,
			m.shop.WebhookManifest(hosted.ProbeLabel)))
		must(t, proc.Wait(t.Context(), time.Minute, m.denied))
	})
	that(t, "kubectl top reads an aggregated API in oslo, which reads all kubelets through its apiserver",
		func(t *testing.T) {
			must(t, m.installService(t.Context(), "metrics", hosted.APIPort, "oslo-1", `[metrics, ":4443"]`,
				metricsRoles+m.shop.MetricsManifest()))
			must(t, proc.Wait(t.Context(), time.Minute, func(ctx context.Context) error {
				out, err := m.shop.Kubectl(ctx, "top", "nodes")
				if err == nil && strings.Count(out, "-1 ") != 3 {
					err = errors.New("want three nodes")
				}
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			}))
		})
}

// says returns a condition that is nil if kubectl prints a text.
func (r *region) says(want string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := r.of.Kubectl(ctx, args...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("want %q", want)
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

func (r *region) execs(ctx context.Context) error {
	node := r.name + "-1"
	return r.says(node+"\n", "exec", "shell-"+node, "--", "/guest", "env", "NODE")(ctx)
}

func (r *region) logs(ctx context.Context) error {
	node := r.name + "-1"
	return r.says("serving "+node+" at ", "logs", "shell-"+node)(ctx)
}

// serviceManifest is a Service with a Pod on a machine, which has a certificate.
const serviceManifest = `
apiVersion: v1
kind: Secret
metadata: {name: NAME, namespace: default}
type: kubernetes.io/tls
data: {tls.crt: CRT, tls.key: KEY}
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default}
spec: {selector: {app: NAME}, ports: [{port: 443, targetPort: PORT}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: default}
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  serviceAccountName: NAME
  nodeSelector: {kubernetes.io/hostname: ON_NODE}
  containers:
    - name: NAME
      image: GUEST
      args: ARGS
      readinessProbe: {tcpSocket: {port: PORT}, periodSeconds: 1}
      volumeMounts: [{name: tls, mountPath: /tls}]
  volumes: [{name: tls, secret: {secretName: NAME, defaultMode: 0444}}]
---
`

// metricsRoles permit the guest to read the metrics of all Nodes.
const metricsRoles = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: metrics}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [get, list]}
  - {apiGroups: [""], resources: [nodes/proxy], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metrics}
subjects: [{kind: ServiceAccount, name: metrics, namespace: default}]
---
`

// installService runs the guest on a machine, behind a Service of shop.
func (m *mixed) installService(ctx context.Context, name string, port int, node, args, more string) error {
	pair, err := m.shop.APIServer.CA.Issue(pki.LeafSpec{
		CommonName: name, Names: []string{name + ".default.svc"}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return err
	}
	text := base64.StdEncoding.EncodeToString
	return m.shop.install(ctx, strings.NewReplacer(
		"NAME", name, "PORT", fmt.Sprint(port), "ON_NODE", node, "GUEST", guestImage, "ARGS", args,
		"CRT", text(pair.CertPEM), "KEY", text(pair.KeyPEM),
	).Replace(serviceManifest+more))
}

// denied returns nil if the webhook denies an object.
func (m *mixed) denied(ctx context.Context) error { return m.shop.Denied("denied in rome")(ctx) }

// aggregated returns nil if the aggregated API answers.
func (m *mixed) aggregated(ctx context.Context) error {
	clients, err := kubernetes.NewForConfig(m.shop.APIServer.Config)
	if err != nil {
		return err
	}
	_, err = clients.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/nodes").DoRaw(ctx)
	return err
}

// forwards returns nil if port-forward reaches the Pod of the region.
func (r *region) forwards(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	node := r.name + "-1"
	cmd, err := r.of.world.KubectlCommand(ctx, r.of.Admin, "port-forward", "pod/shell-"+node, fmt.Sprint(":", guestPort))
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n') // Forwarding from 127.0.0.1:40123 -> 8080
	fields := strings.Fields(line)
	if err != nil || len(fields) < 3 {
		return fmt.Errorf("kubectl port-forward prints %q: %w", line, err)
	}
	return answersAt(ctx, r.of.world.Network.Management, fields[2], node)
}

// answersAt returns nil if an HTTP server answers with a text.
func answersAt(ctx context.Context, from *netns.Namespace, address, want string) error {
	transport := &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, http.NoBody)
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

// keeps proves that Nodes survive a restart of the edge that is their way to the apiserver.
func (m *mixed) keeps(t *testing.T) {
	that(t, "registration survives a restart of an edge: the Node stays Ready and its Pods run", func(t *testing.T) {
		since, err := m.shop.readySince(t.Context(), "rome-1")
		must(t, err)
		restarts := m.restarts(t)
		for _, unit := range m.rome.units[1:] {
			must(t, unit.Terminate(time.Minute))
		}
		m.rome.units[0].Kill()
		for _, unit := range m.rome.units[1:] {
			unit.Resume()
		}
		began := time.Now()
		eventually(t, m.rome.says("v1.", "exec", "shell-rome-1", "--", "/guest", "api", "10.96.0.1"))
		measured("edge_restart_api_s", time.Since(began).Seconds())
		must(t, m.renewed(t.Context(), "rome-1", time.Now()))
		if now, err := m.shop.readySince(t.Context(), "rome-1"); err != nil || !now.Equal(since) {
			t.Errorf("rome-1 was Ready since %s and is since %s: %v", since, now, err)
		}
		if now := m.restarts(t); now != restarts {
			t.Errorf("containers were restarted: %s before, %s now", restarts, now)
		}
	})
	that(t, "a Node has no other way to its apiserver: without edges it is lost, with one it is back",
		func(t *testing.T) {
			for _, unit := range m.vault.units {
				unit.Hold()
			}
			must(t, proc.Wait(t.Context(), 3*gracePeriod, func(ctx context.Context) error {
				if _, err := m.bank.readySince(ctx, "vault-1"); err != nil {
					return nil //nolint:nilerr // that it is not Ready is what is expected
				}
				return errors.New("vault-1 is Ready")
			}))
			for _, unit := range m.vault.units {
				unit.Resume()
			}
			began := time.Now()
			must(t, proc.Wait(t.Context(), 3*gracePeriod, func(ctx context.Context) error {
				_, err := m.bank.readySince(ctx, "vault-1")
				return err
			}))
			measured("lost_node_back_s", time.Since(began).Seconds())
		})
}

// renewed waits until a kubelet has renewed its lease after a time.
func (m *mixed) renewed(ctx context.Context, node string, after time.Time) error {
	clients, err := kubernetes.NewForConfig(m.shop.APIServer.Config)
	if err != nil {
		return err
	}
	return proc.Wait(ctx, promise.Patience, func(ctx context.Context) error {
		lease, err := clients.CoordinationV1().Leases("kube-node-lease").Get(ctx, node, metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(after)) {
			err = errors.New("the lease of " + node + " is not renewed")
		}
		return err
	})
}

// restarts returns how often the containers of shop were restarted.
func (m *mixed) restarts(t *testing.T) string {
	t.Helper()
	pods := &corev1.PodList{}
	must(t, m.shop.APIServer.Client.List(t.Context(), pods, client.InNamespace("default")))
	var all []string
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			all = append(all, fmt.Sprintf("%s=%d", pod.Name, status.RestartCount))
		}
	}
	return strings.Join(all, " ")
}

// loses proves what the loss of edges costs.
func (m *mixed) loses(t *testing.T) {
	that(t, "everything works across all networks while their edges are killed one after the other", func(t *testing.T) {
		watched := map[string]func() promise.Watched{}
		for name, request := range m.requests() {
			watched[name] = promise.Watch(t, request)
		}
		kills := 0
		for _, edge := range m.edges() {
			time.Sleep(time.Second)
			must(t, edge.kill())
			kills++
			time.Sleep(killPause) // until a status that is older than the kill has been replaced
			must(t, proc.Wait(t.Context(), time.Minute, m.tunnels(edge.network+v1alpha1.NetworkTunnelSuffix, 2)))
		}
		measured("killed_edges", float64(kills))
		for name, stop := range watched {
			w := stop()
			measured(name+"_sent", float64(w.Sent))
			measured(name+"_lost", float64(w.Lost))
			measured(name+"_outage_s", w.Outage.Seconds())
			if w.Lost > kills {
				t.Errorf("%s: lost %d of %d with %d killed edges: more than those in flight", name, w.Lost, w.Sent, kills)
			}
		}
	})
	that(t, "fairlead shows which networks of a Cluster are ready, and their edges", func(t *testing.T) {
		out, err := m.Exec(t.Context(), "network", "list", "-n", world.Namespace)
		if err != nil || strings.Count(out, "True") != 4 {
			t.Errorf("%v:\n%s", err, out)
		}
		out, err = m.Exec(t.Context(), "edge", "list", "-n", world.Namespace, "rome.network")
		if err != nil || !strings.Contains(out, "rome-edge") || !strings.Contains(out, "rome-1") {
			t.Errorf("%v:\n%s", err, out)
		}
	})
	that(t, "all Nodes are Ready after that", func(t *testing.T) {
		for _, r := range m.regions() {
			for _, n := range r.nodes {
				_, err := r.of.readySince(t.Context(), n.Name)
				must(t, err)
			}
		}
	})
}

// requests are what is repeated while edges are killed.
func (m *mixed) requests() map[string]func(context.Context) error {
	rotate := func(f func(*region, context.Context) error) func(context.Context) error {
		next := 0
		return func(ctx context.Context) error {
			r := []*region{m.oslo, m.rome, m.lima}[next%3]
			next++
			return f(r, ctx)
		}
	}
	return map[string]func(context.Context) error{
		"exec": rotate((*region).execs), "logs": rotate((*region).logs), "port_forward": rotate((*region).forwards),
		"webhook": m.denied, "aggregated": m.aggregated,
	}
}

// killable is an edge of a network.
type killable struct {
	network string
	kill    func() error
}

// edges returns the edges of all networks of shop: two of each, in three forms.
func (m *mixed) edges() []killable {
	unit := func(units []*proc.Service) func() error {
		return func() error {
			units[0].Kill()
			return nil
		}
	}
	pod := func(n *cluster.Node) func() error { return func() error { return killEnvoy(n) } }
	return []killable{
		{"oslo", unit(m.oslo.units)},
		{"oslo", unit(m.oslo.own)},
		{"rome", unit(m.rome.units)},
		{"rome", pod(m.rome.node("rome-1"))},
		{"lima", unit(m.lima.units)},
		{"lima", pod(m.lima.node("lima-1"))},
	}
}

// moves proves that a machine that is added, or moved to another network, works at once.
func (m *mixed) moves(t *testing.T) {
	const name = "wanderer"
	arrives := func(t *testing.T, r *region) {
		t.Helper()
		must(t, r.addNode(t.Context(), name, false))
		must(t, m.shop.install(t.Context(), shell(name)))
		must(t, proc.Wait(t.Context(), time.Minute, m.shop.runs("default", "shell-"+name)))
		address := r.node(name).Address.String() + "\n"
		eventually(t, r.says(address, "exec", "shell-"+name, "--", "/guest", "env", "HOST"))
	}
	that(t, "a machine that is added to a network joins and works", func(t *testing.T) { arrives(t, m.oslo) })
	that(t, "a machine that is moved to another network joins and works there, under the same name", func(t *testing.T) {
		must(t, m.oslo.deleteMachine(t.Context(), name)) // Cluster API drains the Node and deletes it
		must(t, m.oslo.RemoveNode(t.Context(), m.oslo.node(name)))
		m.oslo.nodes = m.oslo.nodes[:1]
		arrives(t, m.lima)
		must(t, m.oslo.execs(t.Context()))
	})
}
