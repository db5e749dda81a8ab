package install

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/versions"
)

// oldSource builds the oldest version from which an upgrade is supported. It has no images and no chart.
func oldSource(t *testing.T) source {
	t.Helper()
	build, err := versions.Earlier()[0].Build(t.Context())
	must(t, err)
	return source{dir: build.Repository, tag: "old", programs: build.Programs}
}

// upgraded is an installation of the old version with edges of the old version, which is upgraded.
type upgraded struct {
	*World
	old, head source
	manifests string // the folder of the operator's kustomization
	id        string // of the Tunnel
}

// TestUpgrade upgrades an installation from the manifests of the oldest version to this one, by the commands in the
// documents, and back, under requests.
func TestUpgrade(t *testing.T) {
	proof.Need(t)
	clusters := start(t,
		cluster.Options{Name: "upgraded", Nodes: 2},
		cluster.Options{Name: "upgraded-workload", Nodes: 1, Hosts: map[string]netip.Addr{publicHost: cluster.FirstBalancer}},
	)
	u := &upgraded{
		World: &World{management: clusters[0], workload: clusters[1]},
		old:   oldSource(t), head: thisSource(t), manifests: t.TempDir(),
	}
	must(t, u.workload.Reach(t.Context(), u.management))
	for _, s := range []source{u.old, u.head} {
		s.load(t, u.management, "controller", "xds-server", "gateway")
		s.load(t, u.workload, "edge")
	}
	u.installClusterAPI(t)
	for _, check := range []struct {
		promise string
		prove   func(*testing.T, *upgraded)
	}{
		{"the old version starts from its manifests", proveOldVersion},
		{"the chart takes over an installation of the old version, and the tunnel stays", proveUpgrade},
		{"old edges work with new servers, and are replaced", proveNewEdges},
		{"the old manifests take the installation back, and the tunnel stays", proveWayBack},
		{"new edges work with old servers, and are replaced", proveOldEdges},
	} {
		if !that(t, check.promise, func(t *testing.T) { check.prove(t, u) }) {
			t.FailNow()
		}
	}
}

func proveOldVersion(t *testing.T, u *upgraded) {
	base, err := filepath.Rel(u.manifests, filepath.Join(u.old.dir, "deploy/kubernetes"))
	must(t, err)
	file := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + base + "]\nimages:\n"
	for _, name := range []string{"controller", "xds-server", "gateway"} {
		file += fmt.Sprintf("  - {name: fairlead-%s, newTag: %s}\n", name, u.old.tag)
	}
	must(t, os.WriteFile(filepath.Join(u.manifests, "kustomization.yaml"), []byte(file), 0o600))
	u.old.shell(t, u.management, "cd "+u.manifests+"; kubectl apply -k .")
	u.waitServers(t)
	u.nameGateway(t)
	u.createCluster(t, u.workload.APIServer)
	ask(t, u.management, "--namespace="+shops, "label", "--overwrite", "cluster/paris", "fairlead.dev/tunnel=enabled")
	ask(t, u.workload, "create", "namespace", edgeNamespace)
	u.id = u.bootstrap(t)
	u.applyTo(t, u.old)
	eventually(t, u.reach)
}

// applyTo applies the edges of a version as a user does, and waits for them.
func (u *upgraded) applyTo(t *testing.T, s source) {
	t.Helper()
	file := filepath.Join(filepath.Dir(u.manifests), "edges.yaml") // its path has no comma, at which kubectl splits it
	must(t, os.WriteFile(file, []byte(s.edges(t, u.id)), 0o600))
	s.shell(t, u.workload, "kubectl apply -f "+file)
	u.waitEdges(t)
	u.run(t, u.workload, edgeNamespace, s)
}

// run waits until all Pods of a namespace run the images of a version.
func (u *upgraded) run(t *testing.T, c *cluster.Cluster, namespace string, s source) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := c.Client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if image := pod.Spec.Containers[0].Image; !strings.HasSuffix(image, ":"+s.tag) {
				return fmt.Errorf("Pod %s has the image %s", pod.Name, image)
			}
		}
		if len(pods.Items) == 0 {
			return fmt.Errorf("namespace %s has no Pod", namespace)
		}
		return nil
	})
}

// Limits for the requests that fail while all programs of one kind are replaced.
const (
	mostLost   = 0.05 // of all requests
	mostOutage = 10 * time.Second
)

// underRequests does something while requests go through the tunnel, one after the other, and each over a new
// connection, without a retry.
func (u *upgraded) underRequests(t *testing.T, figure string, do func()) {
	t.Helper()
	stop := promise.Watch(t, u.reach)
	do()
	seen := stop()
	measured(figure+"_sent", float64(seen.Sent))
	measured(figure+"_lost", float64(seen.Lost))
	measured(figure+"_outage_s", seen.Outage.Seconds())
	if seen.Sent < 20 || float64(seen.Lost) > mostLost*float64(seen.Sent) || seen.Outage > mostOutage {
		t.Errorf("%d of %d requests failed, and for %s all of them", seen.Lost, seen.Sent, seen.Outage)
	}
}

// takeOver is the command in docs/install.md with which the chart takes over what a kustomization has installed.
const takeOver = "--take-ownership --force-conflicts"

func proveUpgrade(t *testing.T, u *upgraded) {
	documented(t, "install.md", takeOver)
	address := u.publicAddress(t)
	u.underRequests(t, "upgrade", func() {
		u.head.shell(t, u.management, "helm upgrade --install fairlead deploy/chart/fairlead --namespace "+ownNamespace+
			" --set tunnelDomain=tunnels.example.com,publicAddress="+publicHost+":443,image.tag="+u.head.tag+" "+takeOver)
		u.waitServers(t)
		u.run(t, u.management, ownNamespace, u.head)
	})
	if now := u.publicAddress(t); now != address {
		t.Errorf("the Service for edges was %s and is %s", address, now)
	}
	u.check(t, u.head, "fairlead config sync", checkAll)
}

// checkAll is the command with which an operator checks all workload clusters.
const checkAll = "fairlead check --all -A"

// settleTime bounds the time until all nodes run the configuration of new servers.
const settleTime = 2 * time.Minute

// check runs checks in docs/operations.md with the programs of a version, until they pass.
func (u *upgraded) check(t *testing.T, s source, commands ...string) {
	t.Helper()
	eventually(t, u.reach)
	for _, command := range commands {
		documented(t, "operations.md", command)
		must(t, proc.Wait(t.Context(), settleTime, func(ctx context.Context) error {
			return s.try(ctx, u.management, command)
		}))
	}
}

// publicAddress returns the identity and the address of the Service for edges, which must stay: a new one gets another
// address of the load balancer.
func (u *upgraded) publicAddress(t *testing.T) string {
	t.Helper()
	return ask(t, u.management, "--namespace="+ownNamespace, "get", "service", "gateway-public",
		"--output=jsonpath={.metadata.uid} {.status.loadBalancer.ingress[0].ip}")
}

func proveNewEdges(t *testing.T, u *upgraded) {
	u.underRequests(t, "new_edges", func() { u.applyTo(t, u.head) })
	u.check(t, u.head, "fairlead config sync", checkAll)
}

// Commands for the way back: Helm forgets a release and keeps its objects, and those that the old version lacks end.
const (
	forget    = "kubectl -n fairlead-system delete secret -l owner=helm,name=fairlead"
	deleteNew = "kubectl -n fairlead-system delete networkpolicy/fairlead-gateway networkpolicy/fairlead-xds-server " +
		"pdb/controller pdb/xds-server role/fairlead-proxy"
)

func proveWayBack(t *testing.T, u *upgraded) {
	address := u.publicAddress(t)
	commands := []string{
		forget,
		"kubectl apply -k . -l 'app.kubernetes.io/name in (controller, xds-server)'",
		"kubectl -n fairlead-system rollout status deployment/controller",
		"kubectl -n fairlead-system rollout status deployment/xds-server",
		"kubectl apply -k . -l app.kubernetes.io/name=gateway",
		"kubectl -n fairlead-system rollout status statefulset/gateway",
		deleteNew,
	}
	u.underRequests(t, "back", func() {
		for _, command := range commands {
			documented(t, "operations.md", command)
			u.old.shell(t, u.management, "cd "+u.manifests+"; "+command)
		}
		u.waitServers(t)
		u.run(t, u.management, ownNamespace, u.old)
	})
	if now := u.publicAddress(t); now != address {
		t.Errorf("the Service for edges was %s and is %s", address, now)
	}
	u.check(t, u.old, checkAll)
	u.onlyOld(t)
}

// onlyOld fails the test if the namespace of the installation has objects that the old manifests do not have, but those
// that programs have made.
func (u *upgraded) onlyOld(t *testing.T) {
	t.Helper()
	const types = "networkpolicies,poddisruptionbudgets,deployments,statefulsets,serviceaccounts,roles,rolebindings"
	rendered := filepath.Join(u.manifests, "rendered")
	u.old.shell(t, u.management, "kubectl kustomize "+u.manifests+" >"+rendered)
	names := func(what string) []string {
		return strings.Fields(ask(t, u.management, "--namespace="+ownNamespace, "get", what, "--output=name"))
	}
	want := names("--filename=" + rendered)
	for _, name := range names(types) {
		if !slices.Contains(want, name) && name != "serviceaccount/default" {
			t.Errorf("after the way back, %s is left", name)
		}
	}
}

func proveOldEdges(t *testing.T, u *upgraded) {
	u.underRequests(t, "old_edges", func() { u.applyTo(t, u.old) })
	u.check(t, u.old, checkAll)
}

// documented fails the test if a page of docs lacks a command.
func documented(t *testing.T, page, command string) {
	t.Helper()
	root, err := workspace.FindRoot()
	must(t, err)
	data, err := os.ReadFile(filepath.Join(root, "docs", page))
	must(t, err)
	if !strings.Contains(string(data), command) {
		t.Fatalf("docs/%s does not contain %s", page, command)
	}
}
