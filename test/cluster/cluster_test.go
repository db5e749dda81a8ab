package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
)

// namespace has all Pods of these tests. Its Pods meet the restricted level, or are rejected.
const namespace = "guests"

const restricted = `
apiVersion: v1
kind: Namespace
metadata: {name: guests, labels: {pod-security.kubernetes.io/enforce: restricted}}
`

// safe is the security context that the restricted level requires.
const safe = `
    securityContext:
      allowPrivilegeEscalation: false
      runAsNonRoot: true
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
`

// web is a Deployment on both nodes, behind a Service, of which a drain leaves one Pod.
const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: guests}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      topologySpreadConstraints:
        - topologyKey: kubernetes.io/hostname
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: web}}
      containers:
        - name: web
          image: GUEST
          args: [serve, ":8080"]
          ports: [{containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
          securityContext:
            allowPrivilegeEscalation: false
            runAsNonRoot: true
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: guests}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: guests}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
`

func TestCluster(t *testing.T) {
	c := start(t, cluster.Options{Name: "two-nodes", Nodes: 2})
	apply(t, c, restricted)
	apply(t, c, web)
	for _, check := range []struct {
		promise string
		prove   func(*testing.T, *cluster.Cluster)
	}{
		{"both nodes are ready and have the pinned version", proveNodes},
		{"a restricted Pod runs with seccomp, and another one is rejected", proveRestricted},
		{"Pods find a Service by its name and reach it on every node", proveService},
		{"exec and logs reach a container", proveExec},
		{"a DaemonSet serves a port of each node", proveHostPort},
		{"a container that needs more memory than its limit is killed", proveOOM},
		{"containers survive a restart of containerd and of the kubelet", proveRestarts},
		{"a drain keeps one Pod of a Service with a PodDisruptionBudget", proveDrain},
		{"a second cluster reaches the first one's load balancers, and nothing else", proveReach},
		{"the Pods of a removed node start on another one", proveRemoval},
	} {
		that(t, check.promise, func(t *testing.T) { check.prove(t, c) })
	}
	that(t, "a stopped cluster leaves nothing behind", func(t *testing.T) { proveStopped(t, c) })
}

func proveNodes(t *testing.T, c *cluster.Cluster) {
	server := ask(t, c, "get", "--raw", "/version")
	for _, version := range strings.Fields(
		ask(t, c, "get", "nodes", "--output=jsonpath={.items[*].status.nodeInfo.kubeletVersion}"),
	) {
		if !strings.Contains(server, strconv.Quote(version)) {
			t.Errorf("a kubelet has version %s, and the apiserver %s", version, server)
		}
	}
	for _, n := range c.Nodes() {
		must(t, n.Ready(t.Context()))
	}
}

// pod returns the manifest of a Pod that runs the guest once.
func pod(name, node, args, more string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: guests}
spec:
  restartPolicy: Never
  nodeName: %q
  containers:
  - name: guest
    image: GUEST
    args: [%s]%s`, name, node, args, more)
}

// succeeded returns a condition that holds if a Pod has ended without an error.
func succeeded(c *cluster.Cluster, name string) func(context.Context) error {
	return says(c, "Succeeded", "--namespace="+namespace, "get", "pod", name, "--output=jsonpath={.status.phase}")
}

// output runs the guest once in a Pod and returns what it prints.
func output(t *testing.T, c *cluster.Cluster, name, node, args string) string {
	t.Helper()
	apply(t, c, pod(name, node, args, safe))
	eventually(t, succeeded(c, name))
	return ask(t, c, "--namespace="+namespace, "logs", name)
}

func proveRestricted(t *testing.T, c *cluster.Cluster) {
	const filtered = "2" // SECCOMP_MODE_FILTER
	if got := output(t, c, "seccomp", "", "status, Seccomp"); got != filtered {
		t.Errorf("the Pod's process has seccomp mode %s, want %s", got, filtered)
	}
	const none = "0000000000000000"
	if got := output(t, c, "capabilities", "", "status, CapEff"); got != none {
		t.Errorf("the Pod's process has the capabilities %s, want none", got)
	}
	must(t, failed(c.Apply(t.Context(), []byte(strings.ReplaceAll(pod("unsafe", "", "status, Seccomp", ""), "GUEST",
		guestImage))), "violates PodSecurity"))
}

func proveService(t *testing.T, c *cluster.Cluster) {
	ask(t, c, "--namespace="+namespace, "rollout", "status", "deployment/web", "--timeout=60s")
	for _, n := range c.Nodes() {
		got := output(t, c, "client-"+n.Name, n.Name, "get, http://web.guests.svc.cluster.local/")
		if !strings.HasPrefix(got, "web-") {
			t.Errorf("a Pod on %s gets %q from the Service", n.Name, got)
		}
	}
}

func proveExec(t *testing.T, c *cluster.Cluster) {
	name := strings.Fields(ask(t, c, "--namespace="+namespace, "get", "pods", "--selector=app=web",
		"--output=jsonpath={.items[*].metadata.name}"))[0]
	if got := ask(t, c, "--namespace="+namespace, "exec", name, "--", "/guest", "status", "Name"); got != "guest" {
		t.Errorf("exec prints %q", got)
	}
	if got := ask(t, c, "--namespace="+namespace, "logs", name); got != "serving "+name+" at :8080" {
		t.Errorf("the log has %q", got)
	}
}

const daemon = `
apiVersion: v1
kind: Namespace
metadata: {name: daemons}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: host, namespace: daemons}
spec:
  selector: {matchLabels: {app: host}}
  template:
    metadata: {labels: {app: host}}
    spec:
      containers: [{name: host, image: GUEST, args: [serve, ":8080"], ports: [{containerPort: 8080, hostPort: 8099}]}]
`

// requestTime bounds one request.
const requestTime = 3 * time.Second

// fetch sends a request from the control plane's machine.
func fetch(ctx context.Context, c *cluster.Cluster, url string) (string, error) {
	transport := &http.Transport{DialContext: c.Namespace.DialContext, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	return string(body), err
}

// answers returns a condition that holds if an answer begins with a text.
func answers(c *cluster.Cluster, url, prefix string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := fetch(ctx, c, url)
		if err == nil && !strings.HasPrefix(got, prefix) {
			err = fmt.Errorf("%s answers %q, want %q", url, got, prefix)
		}
		return err
	}
}

func proveHostPort(t *testing.T, c *cluster.Cluster) {
	apply(t, c, daemon)
	for _, n := range c.Nodes() {
		eventually(t, answers(c, "http://"+net.JoinHostPort(n.Address.String(), "8099")+"/", "host-"))
	}
}

func proveOOM(t *testing.T, c *cluster.Cluster) {
	apply(t, c, pod("greedy", "", "eat, \"256\"", safe+"    resources: {limits: {memory: 32Mi}}\n"))
	eventually(t, says(c, "OOMKilled", "--namespace="+namespace, "get", "pod", "greedy",
		"--output=jsonpath={.status.containerStatuses[0].state.terminated.reason}"))
}

func proveRestarts(t *testing.T, c *cluster.Cluster) {
	containers := func() string {
		return ask(t, c, "--namespace="+namespace, "get", "pods", "--selector=app=web", "--sort-by=.metadata.name",
			"--output=jsonpath={.items[*].status.containerStatuses[0].containerID}")
	}
	before := containers()
	n := c.Nodes()[0]
	must(t, n.RestartContainerd(t.Context(), time.Second))
	n.Kubelet.Kill()
	eventually(t, n.Ready)
	apply(t, c, pod("after", n.Name, "status, Name", safe)) // both work again
	eventually(t, succeeded(c, "after"))
	if after := containers(); after != before {
		t.Errorf("the containers were %s and are %s", before, after)
	}
}

// watch sends requests until stop is called, which returns how many failed and how many were sent.
func watch(t *testing.T, c *cluster.Cluster, url string) (stop func() (failed, sent int32)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var failures, requests atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			requests.Add(1)
			if _, err := fetch(ctx, c, url); err != nil && ctx.Err() == nil {
				failures.Add(1)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() (int32, int32) {
		cancel()
		<-done
		return failures.Load(), requests.Load()
	}
}

func proveDrain(t *testing.T, c *cluster.Cluster) {
	const available = "--output=jsonpath={.status.availableReplicas}"
	n := c.Nodes()[0]
	began := time.Now()
	ask(t, c, "drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
	measured("drain_s", time.Since(began).Seconds())
	got := ask(t, c, "get", "pods", "--all-namespaces", "--selector=app=web",
		"--field-selector=spec.nodeName="+n.Name, "--output=name")
	if got != "" {
		t.Errorf("after the drain %s still has %s", n.Name, got)
	}
	eventually(t, says(c, "2", "--namespace="+namespace, "get", "deployment", "web", available))
	// Both Pods are on the other node now. Its drain has to evict them one after the other.
	ask(t, c, "uncordon", n.Name)
	stop := watch(t, c, "http://"+loadBalancer(t, c)+"/")
	ask(t, c, "drain", c.Nodes()[1].Name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s")
	ask(t, c, "uncordon", c.Nodes()[1].Name)
	lost, sent := stop()
	measured("drain_requests", float64(sent))
	measured("drain_lost", float64(lost))
	eventually(t, says(c, "2", "--namespace="+namespace, "get", "deployment", "web", available))
}

// loadBalancer returns the address of the Service web.
func loadBalancer(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	var address string
	eventually(t, func(ctx context.Context) (err error) {
		address, err = kubectl(ctx, c, "--namespace="+namespace, "get", "service", "web",
			"--output=jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err == nil && address == "" {
			err = fmt.Errorf("the Service has no address yet")
		}
		return err
	})
	return address
}

func proveReach(t *testing.T, c *cluster.Cluster) {
	second := start(t, cluster.Options{Name: "second", Nodes: 1})
	apply(t, second, restricted)
	must(t, second.Reach(t.Context(), c))
	url := "http://" + loadBalancer(t, c) + "/"
	if got := output(t, second, "client", "", "get, "+url); !strings.HasPrefix(got, "web-") {
		t.Errorf("a Pod of the second cluster gets %q", got)
	}
	must(t, answers(second, url, "web-")(t.Context()))
	// Nothing listens here, so without its rules the router would reject the connection. It drops the packets.
	got, err := fetch(t.Context(), second, "http://172.31.0.254:5000/")
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		t.Errorf("the second cluster gets %q and the error %v from the first one's router", got, err)
	}
	// Not even the router of the first cluster opens a connection to that of the second.
	err = c.FromRouter(t.Context(), "172.31.0.1:5000")
	must(t, failed(err, "i/o timeout"))
}

func proveRemoval(t *testing.T, c *cluster.Cluster) {
	name := strings.Fields(ask(t, c, "--namespace="+namespace, "get", "pods", "--selector=app=web",
		"--output=jsonpath={.items[*].spec.nodeName}"))[0]
	nodes := c.Nodes()
	removed := nodes[slices.IndexFunc(nodes, func(n *cluster.Node) bool { return n.Name == name })]
	must(t, c.RemoveNode(t.Context(), removed))
	eventually(t, says(c, "node/"+c.Nodes()[0].Name, "get", "nodes", "--output=name"))
	// Kubernetes does this itself after a minute.
	ask(t, c, "delete", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+name, "--force", "--grace-period=0")
	ask(t, c, "--namespace="+namespace, "rollout", "status", "deployment/web", "--timeout=90s")
	got := ask(t, c, "--namespace="+namespace, "get", "pods", "--selector=app=web",
		"--field-selector=status.phase=Running", "--output=jsonpath={.items[*].spec.nodeName}")
	if want := c.Nodes()[0].Name; got != want+" "+want {
		t.Errorf("the Pods are on %q, want all on %s", got, want)
	}
}
