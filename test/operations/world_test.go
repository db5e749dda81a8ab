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

// namespace is the namespace of the Clusters in the document.
const namespace = "prod"

// backIn bounds the time until everything works again after a loss, on a busy machine.
const backIn = 3 * time.Minute

// operations is an installation as documented: two replicas of everything, installed from a kustomization, with two
// workload clusters.
type operations struct {
	*world.World
	kubelet  *kubelet
	folder   string  // the operator's working folder, with the kustomization and the repository
	path     string  // of the operator's commands
	version  version // the version that is installed first, and of edges that are started
	clusters []*lab.Cluster
	edges    []*edge
	fresh    int

	revoked, ended []stolenEdge // revoked edges, and edges of an ended tunnel
}

// edge is an edge, and its state when it was last inspected.
type edge struct {
	*lab.Agent
	name  string
	of    *lab.Cluster
	known outsider.Stolen
}

// newOperations starts an installation of a version with three edges and two workload clusters: one is reached by SNI
// and one by CONNECT.
func newOperations(t *testing.T, v version) *operations {
	t.Helper()
	o := &operations{folder: t.TempDir(), path: t.TempDir(), version: v}
	options := lab.Options{
		Gateways: 2, XDSServers: 2, Controllers: 2, GatewayPod: true, Collector: true,
		LogLevel: "info",
		ServingNames: []string{
			world.HostnameIn(namespace, "c1"),
		}, ControllerFlags: []string{"--leader-elect-lease=8s"}, Install: o.install,
		Programs: v.programs,
	}
	o.World = world.Start(t, &proof, options)
	o.kubelet = newKubelet(t, o.Lab)
	o.clusters = []*lab.Cluster{o.cluster(t, "c1", o.SNI), o.cluster(t, "c2", o.Connect)}
	for _, c := range []*lab.Cluster{o.clusters[0], o.clusters[0], o.clusters[1]} {
		o.enrol(t, c)
	}
	o.within(t, o.healthy)
	o.inspect(t)
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
	e.Agent, err = o.RunEdge(
		lab.EdgeSpec{Name: e.name, Bootstraps: [][]byte{file}, Program: o.version.program("edge-agent")},
	)
	must(t, err)
	o.edges = append(o.edges, e)
	return e
}

// within waits until a condition is nil, at most for backIn, and returns how long that took.
func (o *operations) within(t *testing.T, condition func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := proc.Wait(t.Context(), backIn, condition); err != nil {
		t.Fatalf("%v\nthe kubelet's last trouble: %v", err, o.kubelet.err())
	}
	return time.Since(begin)
}

// healthy returns nil if Cluster API and all other clients reach all workload clusters, and if each edge has tunnels to
// all gateways.
func (o *operations) healthy(ctx context.Context) error {
	for _, c := range o.clusters {
		if err := c.Reach(ctx); err != nil {
			return fmt.Errorf("reaching %s: %w", c, err)
		}
		if err := c.RemoteConnectionProbe(ctx); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return o.allConnected(ctx)
}

// allConnected returns nil if each edge has tunnels to all gateways.
func (o *operations) allConnected(ctx context.Context) error {
	for _, e := range o.edges {
		if err := o.connected(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// connected returns nil if status shows tunnels of an edge to all gateways.
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

// inspect records the state of the edges.
func (o *operations) inspect(t *testing.T) {
	t.Helper()
	for _, e := range o.edges {
		e.known = world.Steal(t, e.Agent)
	}
}

// edgesUnchanged fails the test unless each edge is unchanged since inspect: the same process, the same name, and as
// many enrolments.
func (o *operations) edgesUnchanged(t *testing.T) {
	t.Helper()
	for _, e := range o.edges {
		if now := world.Steal(t, e.Agent); now.Subject != e.known.Subject {
			t.Errorf("%s is %s now, was %s", e.name, now.Subject.Node, e.known.Subject.Node)
		}
	}
}

// kept fails the test unless an operator's file or folder exists and only its owner may read it.
func (o *operations) kept(t *testing.T, name string) {
	t.Helper()
	info, err := os.Stat(filepath.Join(o.folder, name))
	must(t, err)
	if info.Size() == 0 || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read %s, or it is empty: %s, %d bytes", name, info.Mode(), info.Size())
	}
}

// rotation returns the public state of the CA.
func (o *operations) rotation(ctx context.Context) (rotation v1alpha1.CARotation, err error) {
	var info corev1.ConfigMap
	if err := o.Management.Client.Get(ctx, client.ObjectKey{
		Namespace: lab.InstallationNamespace,
		Name:      v1alpha1.InstallationConfigMapName,
	}, &info); err != nil {
		return rotation, err
	}
	return rotation, json.Unmarshal([]byte(info.Data[v1alpha1.CARotationKey]), &rotation)
}

// serial returns the serial number of the only CA.
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
