package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
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
	folder   string  // where an operator gives commands: the kustomization is there, and the repository below it
	path     string  // where an operator's programs are
	version  version // that is installed first, and of edges that are started
	clusters []*lab.Cluster
	edges    []*edge
	fresh    int

	revoked, ended []stolenEdge // that were thrown out
}

// edge is an edge, and what it was when it was last looked at.
type edge struct {
	*lab.Agent
	name  string
	of    *lab.Cluster
	known outsider.Stolen
}

// newOperations starts an installation of a version with two workload clusters, of which one is reached by SNI and one by CONNECT, and three edges.
func newOperations(t *testing.T, v version) *operations {
	t.Helper()
	proof.Need(t)
	o := &operations{folder: t.TempDir(), path: t.TempDir(), version: v}
	options := lab.Options{
		Gateways: 2, XDSServers: 2, Controllers: 2, GatewayPod: true, Collector: true, TunnelDomain: string(world.Domain), LogLevel: "info",
		ServingNames: []string{world.HostnameIn(namespace, "c1")}, ControllerFlags: []string{"--leader-elect-lease=8s"}, Install: o.install,
		Programs: v.programs,
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

func (o *operations) cluster(t *testing.T, name string, api *kube.APIServer) *lab.Cluster {
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
	e.Agent, err = o.RunEdge(lab.EdgeSpec{Name: e.name, Bootstraps: [][]byte{file}, Program: o.version.program("edge-agent")})
	must(t, err)
	o.edges = append(o.edges, e)
	return e
}

// within waits until everything is back.
func (o *operations) within(t *testing.T, condition func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := proc.Wait(t.Context(), backIn, condition); err != nil {
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
