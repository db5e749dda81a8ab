package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// namespace is where the Clusters of the document are.
const namespace = "prod"

// backIn is how long it may take until everything is back after something was lost, on a busy machine.
const backIn = 3 * time.Minute

// operations is an installation as the document has it: two replicas of everything, installed from a kustomization, with two workload clusters.
type operations struct {
	*world.World
	kubelet  *kubelet
	folder   string // where an operator gives commands: the kustomization is there, and the repository below it
	path     string // where an operator's programs are
	clusters []*lab.Cluster
	edges    []*edge
	fresh    int
}

// edge is an edge, and what it was when it was last looked at.
type edge struct {
	*lab.Agent
	name  string
	of    *lab.Cluster
	known outsider.Stolen
}

// newOperations starts the installation with two workload clusters, of which one is reached by SNI and one by CONNECT, and three edges.
func newOperations(t *testing.T, change func(*lab.Options)) *operations {
	t.Helper()
	proof.Need(t)
	o := &operations{folder: t.TempDir(), path: t.TempDir()}
	options := lab.Options{
		Gateways: 2, XDSServers: 2, Controllers: 2, GatewayPod: true, Collector: true, TunnelDomain: string(world.Domain), LogLevel: "info",
		ServingNames: []string{world.HostnameIn(namespace, "c1")}, ControllerFlags: []string{"--leader-elect-lease=8s"}, Install: o.install,
	}
	if change != nil {
		change(&options)
	}
	l, err := lab.New(t.Context(), options)
	o.World = world.New(t, proof.Start(t, l, err))
	o.kubelet = newKubelet(t, o.Lab)
	o.clusters = []*lab.Cluster{o.cluster(t, "c1", o.SNI), o.cluster(t, "c2", o.Connect)}
	for _, c := range []*lab.Cluster{o.clusters[0], o.clusters[0], o.clusters[1]} {
		o.enrol(t, c)
	}
	o.within(t, o.well)
	o.look(t)
	return o
}

func (o *operations) cluster(t *testing.T, name string, api *lab.APIServer) *lab.Cluster {
	t.Helper()
	c, err := o.CreateCluster(t.Context(), lab.ClusterSpec{Name: name, Namespace: namespace, APIServer: api})
	must(t, err)
	must(t, c.SetProvisioned(t.Context()))
	return c
}

// enrol starts one more edge of a Cluster.
func (o *operations) enrol(t *testing.T, c *lab.Cluster) *edge {
	t.Helper()
	file, err := c.Bootstrap(t.Context())
	must(t, err)
	o.fresh++
	e := &edge{name: fmt.Sprintf("edge-%s-%d", c.Name, o.fresh), of: c}
	e.Agent, err = o.RunEdge(lab.EdgeSpec{Name: e.name, Bootstraps: [][]byte{file}})
	must(t, err)
	o.edges = append(o.edges, e)
	return e
}

// install is what the document on installing says, with a kustomization of the reader's own, taken from there.
func (o *operations) install(ctx context.Context, l *lab.Lab) error {
	kubeconfig, err := l.ManagementKubeconfig()
	if err != nil {
		return err
	}
	if err := o.prepare(l, kubeconfig); err != nil {
		return err
	}
	out, err := o.script(ctx, l, "kubectl apply -k .")
	if err != nil {
		return fmt.Errorf("installing: %w: %s", err, out)
	}
	return nil
}

// wrapper adds to a command where the xds-servers are asked: they are found by forwarding ports of their Pods, which have no kubelet here.
const wrapper = `#!/bin/sh
case "$1" in
check|config) exec %[1]s "$@" --xds-server=%[2]s ;;
*) exec %[1]s "$@" ;;
esac
`

// prepare makes the folder in which an operator works, and finds the programs.
func (o *operations) prepare(l *lab.Lab, kubeconfig string) error {
	servers := lab.InspectAddress(0) + "," + lab.InspectAddress(1)
	if err := os.WriteFile(filepath.Join(o.path, "fairlead"), fmt.Appendf(nil, wrapper, l.Program("fairlead"), servers), 0o755); err != nil {
		return err
	}
	for _, program := range []string{"kubectl", "clusterctl"} {
		if err := os.Symlink(filepath.Join(l.Root(), "bin", program), filepath.Join(o.path, program)); err != nil {
			return err
		}
	}
	if err := os.Symlink(kubeconfig, filepath.Join(o.path, "kubeconfig")); err != nil {
		return err
	}
	return o.kustomize(l.Root(), "v1")
}

// kustomize writes the kustomization of the document on installing, for a copy of the repository and with a tag. The lab's webhook has no
// Service, and its gateways listen on another port.
func (o *operations) kustomize(repository, tag string) error {
	text, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		return err
	}
	found := blocks(string(text), "yaml")
	if len(found) == 0 {
		return fmt.Errorf("docs/install.md has no kustomization")
	}
	var kustomization map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(found[0], "newTag: v1", "newTag: "+tag)), &kustomization); err != nil {
		return err
	}
	patches, _ := kustomization["patches"].([]any)
	kustomization["patches"] = append(patches, map[string]any{
		"target": map[string]any{"kind": "MutatingWebhookConfiguration"},
		"patch":  `[{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": "https://127.0.0.1:9447/kubeconfigs"}}]`,
	}, map[string]any{
		"target": map[string]any{"kind": "StatefulSet"},
		"patch":  fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/ports/0/containerPort", "value": %d}]`, lab.PublicPort),
	})
	data, err := yaml.Marshal(kustomization)
	if err != nil {
		return err
	}
	link := filepath.Join(o.folder, "fairlead")
	_ = os.Remove(link)
	if err := os.Symlink(repository, link); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.folder, "kustomization.yaml"), data, 0o644)
}

// commands keeps two of them from writing the same kubeconfig.
var commands sync.Mutex

// script runs commands as an operator does, in the management network.
func (o *operations) script(ctx context.Context, l *lab.Lab, text string) (string, error) {
	commands.Lock()
	_, err := l.ManagementKubeconfig() // the management cluster may be another by now
	commands.Unlock()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, backIn)
	defer cancel()
	cmd := l.Network.Management.Command(ctx, "bash", "-euo", "pipefail", "-c", text)
	cmd.Dir = o.folder
	cmd.Env = []string{
		"PATH=" + o.path + ":" + os.Getenv("PATH"), "HOME=" + o.path, "XDG_CONFIG_HOME=" + o.path, "KUBECONFIG=" + filepath.Join(o.path, "kubeconfig"),
		"KUBECACHEDIR=" + filepath.Join(o.path, "cache"), "CLUSTERCTL_DISABLE_VERSIONCHECK=true",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("running %q: %w", text, err)
	}
	return string(out), err
}

// run runs commands that have to succeed, and returns what they say.
func (o *operations) run(t *testing.T, text string) string {
	t.Helper()
	out, err := o.script(t.Context(), o.Lab, text)
	if err != nil {
		t.Fatalf("%v\n%s\nthe kubelet's last trouble: %v", err, out, o.kubelet.err())
	}
	return out
}

// within waits until everything is back.
func (o *operations) within(t *testing.T, condition func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := lab.Wait(t.Context(), backIn, condition); err != nil {
		t.Fatalf("%v\nthe kubelet's last trouble: %v", err, o.kubelet.err())
	}
	return time.Since(begin)
}

// well is the condition that Cluster API and everybody else reaches all workload clusters, and that each edge has tunnels to all gateways.
func (o *operations) well(ctx context.Context) error {
	for _, c := range o.clusters {
		if err := c.Reach(ctx); err != nil {
			return fmt.Errorf("reaching %s: %w", c, err)
		}
		if err := c.RemoteConnectionProbe(ctx); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	for _, e := range o.edges {
		if err := o.connected(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// connected is the condition that status has tunnels of an edge to all gateways.
func (o *operations) connected(ctx context.Context, e *edge) error {
	tunnel, err := e.of.Tunnel(ctx)
	if err != nil {
		return err
	}
	now, err := outsider.Steal(world.Domain, e.StateDir)
	if err != nil {
		return err
	}
	for _, s := range tunnel.Status.Edges {
		if s.NodeID != model.NodeID(now.Subject.Node) {
			continue
		}
		if len(s.Gateways) == len(o.Gateways) {
			return nil
		}
		return fmt.Errorf("%s has tunnels to %+v", e.name, s.Gateways)
	}
	return fmt.Errorf("%s (%s) is not in the status of %s", e.name, now.Subject.Node, e.of)
}

// look notes what the edges are.
func (o *operations) look(t *testing.T) {
	t.Helper()
	for _, e := range o.edges {
		e.known = world.Steal(t, e.Agent)
	}
}

// unvisited fails the test unless each edge is the one that it was: the same process, with the same name, enrolled as often as before.
func (o *operations) unvisited(t *testing.T) {
	t.Helper()
	for _, e := range o.edges {
		if now := world.Steal(t, e.Agent); now.Subject != e.known.Subject {
			t.Errorf("%s is %s now, was %s", e.name, now.Subject.Node, e.known.Subject.Node)
		}
	}
}

// kept fails the test unless an operator's file or folder is there and nobody else may read it.
func (o *operations) kept(t *testing.T, name string) {
	t.Helper()
	info, err := os.Stat(filepath.Join(o.folder, name))
	must(t, err)
	if info.Size() == 0 || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read %s, or it is empty: %s, %d bytes", name, info.Mode(), info.Size())
	}
}

// rotation is what is public about the CA.
func (o *operations) rotation(ctx context.Context) (rotation v1alpha1.CARotation, err error) {
	var info corev1.ConfigMap
	if err := o.Management.Client.Get(ctx, client.ObjectKey{Namespace: lab.InstallationNamespace, Name: v1alpha1.InstallationConfigMapName}, &info); err != nil {
		return rotation, err
	}
	return rotation, json.Unmarshal([]byte(info.Data[v1alpha1.CARotationKey]), &rotation)
}

// serial is the serial number of the only CA.
func (o *operations) serial(t *testing.T) string {
	t.Helper()
	var now v1alpha1.CARotation
	eventually(t, func(ctx context.Context) (err error) {
		if now, err = o.rotation(ctx); err == nil && len(now.CAs) != 1 {
			err = fmt.Errorf("there are %d CAs", len(now.CAs))
		}
		return err
	})
	return now.CAs[0].Serial
}
