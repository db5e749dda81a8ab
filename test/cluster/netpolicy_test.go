package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/netpolicy"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// The namespaces of TestNetworkPolicies, and the Service of its server.
const policyNamespaces = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: friends, labels: {access: allowed}}
---
apiVersion: v1
kind: Namespace
metadata: {name: strangers}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
`

// policyPod has two containers, so that it serves two ports, and becomes ready by a probe.
const policyPod = `
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: NAMESPACE, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: NODE
  hostNetwork: HOST
  containers:
    - name: first
      image: GUEST
      args: [serve, ":8080"]
      ports: [{name: http, containerPort: 8080}]
      readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    - {name: second, image: GUEST, args: [serve, ":8091"]}
`

// place is where a Pod runs.
type place struct{ namespace, name, node, host string }

var policyPlaces = []place{
	{"shop", "web", "node-1", "false"},
	{"shop", "client", "node-2", "false"},
	{"friends", "client", "node-1", "false"},
	{"friends", "far", "node-2", "false"},
	{"friends", "visitor", "node-2", "false"},
	{"strangers", "client", "node-1", "false"},
	{"strangers", "far", "node-2", "false"},
	{"strangers", "near-machine", "node-1", "true"},
	{"strangers", "far-machine", "node-2", "true"},
}

func (p place) manifest() string {
	return strings.NewReplacer("NAMESPACE", p.namespace, "NAME", p.name, "NODE", p.node, "HOST", p.host).
		Replace(policyPod)
}

// policyWorld is a cluster that enforces policies.
type policyWorld struct {
	*cluster.Cluster
	enforcer *netpolicy.Enforcer
}

func TestNetworkPolicies(t *testing.T) {
	c := start(t, cluster.Options{Name: "policies", Nodes: 2})
	enforcer, err := netpolicy.Enforce(t.Context(), c)
	must(t, err)
	w := &policyWorld{c, enforcer}
	manifests := policyNamespaces
	for _, p := range policyPlaces {
		manifests += p.manifest()
	}
	apply(t, c, manifests)
	for _, check := range []struct {
		promise string
		prove   func(*testing.T, *policyWorld)
	}{
		{"without policies each Pod reaches each other one", proveNoPolicy},
		{"a default-deny policy admits only the Pod's own node, whose probes pass", proveDefaultDeny},
		{"a policy admits its peers at its ports, also by the name of a port and by a range", provePeers},
		{"a policy admits a block of addresses without its exceptions", proveBlocks},
		{"a policy restricts what a Pod dials, from its first packet", proveEgress},
		{"a policy that changes applies to a connection that is open", proveOpen},
		{"deleted policies restrict nothing", proveNoPolicy},
	} {
		that(t, check.promise, func(t *testing.T) { check.prove(t, w) })
	}
}

// policies replaces all policies of a namespace.
func (w *policyWorld) policies(t *testing.T, namespace string, specs ...string) {
	t.Helper()
	ask(t, w.Cluster, "--namespace="+namespace, "delete", "networkpolicies", "--all")
	var manifests strings.Builder
	for i, spec := range specs {
		_, _ = fmt.Fprintf(&manifests, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"+
			"metadata: {name: policy-%d, namespace: %s}\nspec: %s\n", i, namespace, spec)
	}
	apply(t, w.Cluster, manifests.String())
}

// address returns the address of a Pod.
func (w *policyWorld) address(t *testing.T, namespace, name string) string {
	t.Helper()
	var address string
	eventually(t, func(ctx context.Context) (err error) {
		address, err = kubectl(ctx, w.Cluster, "--namespace="+namespace, "get", "pod", name,
			"--output=jsonpath={.status.podIP}")
		if err == nil && net.ParseIP(address) == nil {
			err = fmt.Errorf("Pod %s has no address yet", name)
		}
		return err
	})
	return address
}

// dial requests a URL from the Pod namespace/name, or from the control plane's machine.
func (w *policyWorld) dial(ctx context.Context, from, url string) error {
	if from == machine {
		_, err := fetch(ctx, w.Cluster, url)
		return err
	}
	namespace, name, _ := strings.Cut(from, "/")
	_, err := kubectl(ctx, w.Cluster, "--namespace="+namespace, "exec", name, "--container=first", "--", "/guest", "get",
		url)
	return err
}

const machine = "the control plane's machine"

// expect waits until exactly the given clients reach a URL. The packets of the others are dropped.
func (w *policyWorld) expect(t *testing.T, url string, admitted ...string) {
	t.Helper()
	clients := everyone()
	errs := make([]error, len(clients))
	var group sync.WaitGroup
	for i, from := range clients {
		group.Go(func() {
			errs[i] = w.check(t, from, url, slices.Contains(admitted, from))
		})
	}
	group.Wait()
	must(t, errors.Join(errs...))
}

// check waits until a request has the expected end: an answer, or none because the packets are dropped.
func (w *policyWorld) check(t *testing.T, from, url string, admitted bool) error {
	t.Helper()
	err := proc.Wait(t.Context(), promise.Patience, func(ctx context.Context) error {
		err := w.dial(ctx, from, url)
		if !admitted {
			return failed(err, "deadline exceeded")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s to %s: %w", from, url, err)
	}
	return nil
}

// everyone returns the names of all clients.
func everyone() []string {
	clients := []string{machine}
	for _, p := range policyPlaces {
		if p.name != "web" {
			clients = append(clients, p.namespace+"/"+p.name)
		}
	}
	return clients
}

const (
	denyAll     = "{podSelector: {}, policyTypes: [Ingress, Egress]}"
	denyIngress = "{podSelector: {}, policyTypes: [Ingress]}"
)

func proveNoPolicy(t *testing.T, w *policyWorld) {
	w.policies(t, "shop")
	w.policies(t, "strangers")
	for _, address := range []string{w.address(t, "shop", "web"), w.address(t, "friends", "visitor")} {
		w.expect(t, "http://"+address+":8080/", everyone()...)
	}
	must(t, w.check(t, "strangers/client", "http://web.shop.svc.cluster.local/", true))
}

func proveDefaultDeny(t *testing.T, w *policyWorld) {
	w.policies(t, "shop", denyAll)
	web := w.address(t, "shop", "web")
	w.expect(t, "http://"+web+":8080/", "strangers/near-machine")
	must(t, w.check(t, "shop/client", "http://"+w.address(t, "friends", "visitor")+":8080/", false))
	apply(t, w.Cluster, place{"shop", "late", "node-2", "false"}.manifest())
	ask(t, w.Cluster, "--namespace=shop", "wait", "--for=condition=Ready", "pod/late", "pod/web", "--timeout=60s")
	flows, err := w.enforcer.Dropped(t.Context())
	must(t, err)
	want := fmt.Sprintf("%s to %s:8080 TCP", w.address(t, "strangers", "client"), web)
	if !slices.ContainsFunc(flows, func(f netpolicy.Flow) bool { return f.String() == want }) {
		t.Errorf("the dropped flows are %v, without %s", flows, want)
	}
}

func provePeers(t *testing.T, w *policyWorld) {
	w.policies(t, "shop", denyIngress, `
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from:
        - namespaceSelector: {matchLabels: {access: allowed}}
          podSelector: {matchExpressions: [{key: app, operator: In, values: [client, far]}]}
      ports: [{port: http}]
    - from: [{podSelector: {}}]
      ports: [{port: 8090, endPort: 8099}]
`)
	web := "http://" + w.address(t, "shop", "web")
	w.expect(t, web+":8080/", "friends/client", "friends/far", "strangers/near-machine")
	w.expect(t, web+":8091/", "shop/client", "strangers/near-machine")
	must(t, w.check(t, "friends/client", "http://web.shop.svc.cluster.local/", true))
}

func proveBlocks(t *testing.T, w *policyWorld) {
	web := "http://" + w.address(t, "shop", "web") + ":8080/"
	block := func(cidr, except string) string {
		return fmt.Sprintf("{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: %s, except: [%s]}}]}]}", cidr, except)
	}
	w.policies(t, "shop", block("0.0.0.0/0", "10.244.0.0/16"))
	w.expect(t, web, machine, "strangers/near-machine", "strangers/far-machine")
	w.policies(t, "shop", block("172.30.0.0/24", w.Nodes()[1].Address.String()+"/32"))
	w.expect(t, web, machine, "strangers/near-machine")
}

func proveEgress(t *testing.T, w *policyWorld) {
	w.policies(t, "shop")
	w.policies(t, "strangers", `
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
    - ports: [{port: 53, protocol: UDP}]
    - to:
        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
          podSelector: {matchLabels: {app: web}}
      ports: [{port: http}]
`)
	web, visitor := w.address(t, "shop", "web"), w.address(t, "friends", "visitor")
	must(t, w.check(t, "strangers/client", "http://web.shop.svc.cluster.local/", true))
	must(t, w.check(t, "strangers/client", "http://"+web+":8091/", false))
	must(t, w.check(t, "strangers/client", "http://"+visitor+":8080/", false))
	must(t, w.check(t, "strangers/far", "http://"+visitor+":8080/", true))
	must(t, w.check(t, "shop/client", "http://"+w.address(t, "strangers", "client")+":8080/", true))
	// The first thing that these Pods do is the request, once.
	apply(t, w.Cluster, eager("admitted", "http://web.shop.svc.cluster.local/")+
		eager("denied", "http://"+visitor+":8080/"))
	for name, phase := range map[string]string{"admitted": "Succeeded", "denied": "Failed"} {
		eventually(t, says(w.Cluster, phase, "--namespace=strangers", "get", "pod", name,
			"--output=jsonpath={.status.phase}"))
	}
}

// eager returns the manifest of a Pod that requests a URL when it starts.
func eager(name, url string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: strangers, labels: {app: client}}
spec: {restartPolicy: Never, containers: [{name: guest, image: GUEST, args: [get, %q]}]}
`, name, url)
}

func proveOpen(t *testing.T, w *policyWorld) {
	conn, err := w.Namespace.DialContext(t.Context(), "tcp", w.address(t, "shop", "web")+":8080")
	must(t, err)
	defer conn.Close()
	ask := func(context.Context) error {
		if err := conn.SetDeadline(time.Now().Add(requestTime)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		return errors.Join(err, response.Body.Close())
	}
	must(t, ask(t.Context()))
	w.policies(t, "shop", denyIngress)
	eventually(t, func(ctx context.Context) error { return failed(ask(ctx), "i/o timeout") })
}
