package install

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/netpolicy"
)

// denyAll is the policy of a namespace in which only what other policies admit is possible.
const denyAll = `
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all, namespace: NAMESPACE}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`

// guarded is an installation in clusters that enforce NetworkPolicies, with namespaces that deny all by default.
type guarded struct {
	*World
	source
	enforcers map[*cluster.Cluster]*netpolicy.Enforcer
}

// TestPolicies proves that the NetworkPolicies of the installation and of edges admit every flow that is needed, and no
// other one.
func TestPolicies(t *testing.T) {
	proof.Need(t)
	clusters := start(t,
		cluster.Options{Name: "guarded", Nodes: 2},
		cluster.Options{Name: "guarded-workload", Nodes: 1, Hosts: map[string]netip.Addr{publicHost: cluster.FirstBalancer}},
	)
	g := &guarded{
		World:  &World{management: clusters[0], workload: clusters[1]},
		source: thisSource(t), enforcers: map[*cluster.Cluster]*netpolicy.Enforcer{},
	}
	must(t, g.workload.Reach(t.Context(), g.management))
	for c, namespace := range map[*cluster.Cluster]string{g.management: ownNamespace, g.workload: edgeNamespace} {
		enforcer, err := netpolicy.Enforce(t.Context(), c)
		must(t, err)
		g.enforcers[c] = enforcer
		must(t, c.Apply(t.Context(), []byte(strings.ReplaceAll(denyAll, "NAMESPACE", namespace))))
	}
	g.load(t, g.management, "controller", "xds-server", "gateway", "cli")
	g.load(t, g.workload, "edge")
	g.installClusterAPI(t)
	for _, check := range []struct {
		promise string
		prove   func(*testing.T, *guarded)
	}{
		{"an installation starts in a namespace that denies all", proveGuardedStart},
		{"edges in a namespace that denies all make their apiserver reachable", proveGuardedEdges},
		{"no policy drops a packet of the installation or of an edge", proveNothingDropped},
		{"each port accepts the documented callers, and packets of other Pods are dropped", provePorts},
		{"a gateway dials xds-servers and gateways, and nothing else", proveGatewayDials},
		{"Pods that start later have all flows too", proveGuardedRestarts},
	} {
		that(t, check.promise, func(t *testing.T) { check.prove(t, g) })
	}
}

// nodeNetwork is the network of the nodes, in which Cluster API and the clients of these tests run.
const nodeNetwork = "172.30.0.0/24"

func proveGuardedStart(t *testing.T, g *guarded) {
	g.shell(t, g.management, "helm install fairlead deploy/chart/fairlead --namespace "+ownNamespace+
		" --set tunnelDomain=tunnels.example.com,publicAddress="+publicHost+":443,image.tag="+g.tag+
		",networkPolicy.clientNetworks={"+nodeNetwork+"},metrics.enabled=true,metrics.operator=false --wait --timeout=280s")
	g.waitServers(t)
	g.nameGateway(t)
	g.shell(t, g.management, "helm test fairlead --namespace "+ownNamespace)
}

func proveGuardedEdges(t *testing.T, g *guarded) {
	g.createCluster(t, g.workload.APIServer)
	ask(t, g.management, "--namespace="+shops, "label", "--overwrite", "cluster/paris", "fairlead.dev/tunnel=enabled")
	must(t, g.workload.Apply(t.Context(), []byte(g.edges(t, g.bootstrap(t)))))
	eventually(t, g.reach)
	g.waitEdges(t)
	ask(t, g.management, "--namespace="+shops, "wait", "tunnel/paris", "--for=condition=Ready", "--timeout=280s")
	g.shell(t, g.management, "fairlead check --all -A")
}

func proveNothingDropped(t *testing.T, g *guarded) {
	for _, flow := range g.dropped(t) {
		t.Errorf("dropped: %s", flow)
	}
}

// dropped returns the flows between present Pods, or between one of them and anything else, that policies have
// dropped, if a Pod of the installation or an edge is an end of them. What is sent to a Service without an endpoint is
// not among them: policies are about Pods, it reaches none, and the sender tries again.
func (g *guarded) dropped(t *testing.T) (flows []string) {
	t.Helper()
	for c, enforcer := range g.enforcers {
		pods := &corev1.PodList{}
		must(t, c.Client.List(t.Context(), pods))
		names := map[netip.Addr]string{}
		for _, pod := range pods.Items {
			if address, err := netip.ParseAddr(pod.Status.PodIP); err == nil && pod.Status.Phase == corev1.PodRunning {
				names[address] = pod.Namespace + "/" + pod.Name
			}
		}
		all, err := enforcer.Dropped(t.Context())
		must(t, err)
		for _, flow := range all {
			from, to := names[flow.From], names[flow.To]
			gone := from == "" && cluster.IsPod(flow.From) || to == "" && cluster.IsPod(flow.To) || cluster.IsService(flow.To)
			if !gone && (strings.HasPrefix(from+" ", "fairlead-") || strings.HasPrefix(to, "fairlead-")) {
				flows = append(flows, fmt.Sprintf("%s (%s to %s)", flow, from, to))
			}
		}
	}
	return flows
}

// dialled are all ports that a program of the installation may listen on.
var dialled = []string{"3128", "6443", "8081", "8443", "9090", "9443", "9447", "9448", "18000"}

// admitted has, for each namespace of a caller, the ports that answer its packets, by the name of the program. A port
// at which nothing listens rejects a connection that is admitted.
var admitted = map[string]map[string]string{
	"outside": {
		"controller": "8081 open", "xds-server": "8081 open, 9448 closed", "gateway": "8081 open, 8443 open",
	},
	"capi-system": {
		"controller": "8081 open", "xds-server": "8081 open, 9448 closed",
		"gateway": "3128 open, 6443 open, 8081 open, 8443 open",
	},
	"clients": {
		"controller": "8081 open", "xds-server": "8081 open, 9448 closed",
		"gateway": "3128 open, 6443 open, 8081 open, 8443 open",
	},
	"monitoring": {
		"controller": "8081 open, 9090 open", "xds-server": "8081 open, 9090 open, 9448 closed",
		"gateway": "8081 open, 8443 open, 9090 open",
	},
	"kube-system": {
		"controller": "8081 open, 9443 open", "xds-server": "8081 open, 9448 closed", "gateway": "8081 open, 8443 open",
	},
}

func provePorts(t *testing.T, g *guarded) {
	guest, err := cluster.GuestImage(t.Context())
	must(t, err)
	must(t, g.management.LoadImage(t.Context(), guest, "guest:lab"))
	targets, names := g.targets(t)
	for namespace := range admitted {
		if namespace != "kube-system" {
			ask(t, g.management, "create", "namespace", namespace)
		}
	}
	ask(t, g.management, "label", "namespace", "clients", "fairlead.dev/gateway-client=allowed")
	for namespace := range admitted {
		ask(t, g.management, "--namespace="+namespace, "run", "caller", "--image=guest:lab", "--restart=Never", "--", "dial",
			strings.Join(targets, ","))
	}
	for namespace, want := range admitted {
		got := g.answers(t, namespace, "caller", names)
		for pod, result := range got {
			if program := strings.Fields(pod)[0]; want[program] != result {
				t.Errorf("to a Pod in namespace %s, %s answers %q, want %q", namespace, pod, result, want[program])
			}
		}
		if len(got) != len(names) {
			t.Errorf("%d of %d Pods answer namespace %s: %v", len(got), len(names), namespace, got)
		}
	}
}

// answers returns what a Pod that dials has found: by the names of the addresses, the ports with an answer.
func (g *guarded) answers(t *testing.T, namespace, pod string, names map[string]string) map[string]string {
	t.Helper()
	ask(t, g.management, "--namespace="+namespace, "wait", "pod/"+pod, "--for=jsonpath={.status.phase}=Succeeded",
		"--timeout=280s")
	got := map[string]string{}
	for line := range strings.Lines(ask(t, g.management, "--namespace="+namespace, "logs", pod)) {
		target, result, _ := strings.Cut(strings.TrimSpace(line), " ")
		host, port, err := net.SplitHostPort(target)
		must(t, err)
		if result != "none" {
			got[names[host]] = strings.TrimPrefix(got[names[host]]+", "+port+" "+result, ", ")
		}
	}
	return got
}

// takenOver is a Pod for which the policies of a gateway apply. It is never ready, so no Service sends it anything.
const takenOver = `
apiVersion: v1
kind: Pod
metadata: {name: taken-over, namespace: fairlead-system, labels: {app.kubernetes.io/name: gateway}}
spec:
  restartPolicy: Never
  containers:
    - name: guest
      image: guest:lab
      args: [dial, "TARGETS"]
      readinessProbe: {tcpSocket: {port: 1}}
`

func proveGatewayDials(t *testing.T, g *guarded) {
	targets, names := g.targets(t)
	apiserver, registry := g.management.Endpoint, g.management.Registry()
	targets = append(targets, apiserver.String(), registry.String())
	names[apiserver.Addr().String()], names[registry.Addr().String()] = "apiserver", "registry"
	manifest := strings.ReplaceAll(takenOver, "TARGETS", strings.Join(targets, ","))
	must(t, g.management.Apply(t.Context(), []byte(manifest)))
	answered := 0
	for name, result := range g.answers(t, ownNamespace, "taken-over", names) {
		want := map[string]string{"gateway": "8443 open", "xds-server": "18000 open"}[strings.Fields(name)[0]]
		if result != want {
			t.Errorf("%s answers a gateway %q, want %q", name, result, want)
		}
		answered++
	}
	if answered != 4 {
		t.Errorf("%d of the 2 gateways and 2 xds-servers answer a gateway", answered)
	}
	ask(t, g.management, "--namespace="+ownNamespace, "delete", "pod", "taken-over")
}

// targets returns the addresses with all ports of each Pod of the installation, and the program and the name of the Pod
// at each address.
func (g *guarded) targets(t *testing.T) (targets []string, names map[string]string) {
	t.Helper()
	pods := &corev1.PodList{}
	must(t, g.management.Client.List(t.Context(), pods, client.InNamespace(ownNamespace)))
	names = map[string]string{}
	for _, pod := range pods.Items {
		program := pod.Labels["app.kubernetes.io/name"]
		if admitted["outside"][program] == "" {
			t.Fatalf("Pod %s is of an unknown program", pod.Name)
		}
		names[pod.Status.PodIP] = program + " " + pod.Name
		for _, port := range dialled {
			targets = append(targets, net.JoinHostPort(pod.Status.PodIP, port))
		}
	}
	if len(names) != 6 {
		t.Fatalf("the Pods of the installation are %v, want two of each program", names)
	}
	return targets, names
}

func proveGuardedRestarts(t *testing.T, g *guarded) {
	before := map[string]bool{}
	for _, flow := range g.dropped(t) {
		before[flow] = true // of the callers above
	}
	ask(t, g.management, "--namespace="+ownNamespace, "rollout", "restart", "deployments")
	ask(t, g.management, "--namespace="+ownNamespace, "rollout", "restart", "statefulsets")
	ask(t, g.workload, "--namespace="+edgeNamespace, "rollout", "restart", "deployments")
	g.waitServers(t)
	g.waitEdges(t)
	eventually(t, g.reach)
	eventually(t, func(ctx context.Context) error {
		out, err := g.management.Kubectl(ctx, "--namespace="+shops, "get", "tunnel/paris",
			`--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`).Output()
		if err == nil && string(out) != "True" {
			err = fmt.Errorf("the Tunnel's condition Ready is %q", out)
		}
		return err
	})
	for _, flow := range g.dropped(t) {
		if !before[flow] {
			t.Errorf("dropped: %s", flow)
		}
	}
}
