package identity

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
)

const domain model.TunnelDomain = "tunnels.example.test"

const namespace = "shops"

// world is an installation, with the means to add Clusters and edges to it.
type world struct {
	*lab.Lab
	authority *lab.Authority // of all stand-ins
	ports     atomic.Int32   // that stand-ins have taken
}

func newWorld(t *testing.T, options lab.Options) *world {
	t.Helper()
	options.TunnelDomain = string(domain)
	authority, err := lab.NewAuthority("stand-ins")
	must(t, err)
	return &world{Lab: newLab(t, options), authority: authority}
}

// member is a Cluster whose apiserver is a stand-in.
type member struct {
	*lab.Cluster
	w        *world
	standIn  *standIn
	hostname string
}

// member creates a Cluster and a stand-in for it in the workload network. A spec is what a user says in the Tunnel.
func (w *world) member(t *testing.T, name string, spec map[string]any) *member {
	t.Helper()
	return w.memberAt(t, name, w.standIn(t, name, w.Network.Workload, w.SNI.Endpoint.Addr()), spec)
}

// memberAt is member with a given stand-in.
func (w *world) memberAt(t *testing.T, name string, s *standIn, spec map[string]any) *member {
	t.Helper()
	cluster, err := w.CreateCluster(t.Context(), lab.ClusterSpec{Name: name, Namespace: namespace, APIServer: s.APIServer, Mode: v1alpha1.KubeconfigModeSNI})
	must(t, err)
	if spec != nil {
		must(t, cluster.PatchTunnel(t.Context(), spec))
	}
	return &member{Cluster: cluster, w: w, standIn: s, hostname: hostname(name)}
}

// standIn starts a stand-in for the apiserver of a Cluster.
func (w *world) standIn(t *testing.T, cluster string, in *lab.Namespace, address netip.Addr) *standIn {
	t.Helper()
	port := 9000 + w.ports.Add(1)
	return newStandIn(t, fmt.Sprintf("%s:%d", cluster, port), in, netip.AddrPortFrom(address, uint16(port)), w.authority, hostname(cluster))
}

// hostname is the tunnel hostname of a Cluster in the tests' namespace.
func hostname(cluster string) string {
	name, err := domain.Hostname(model.Key{Namespace: namespace, Name: cluster})
	if err != nil {
		panic(err) // a constant of this package
	}
	return name
}

// path is a way to the member.
func (m *member) path(gateway int, connect bool) path {
	return path{
		from: m.w.Network.Management, gateway: gateway, connect: connect, hostname: m.hostname, serverName: "kubernetes", roots: m.standIn.roots,
	}
}

// paths are all ways to the member.
func (m *member) paths() []path {
	var all []path
	for i := range m.w.Gateways {
		all = append(all, m.path(i, false), m.path(i, true))
	}
	return all
}

// works is the condition that the member is reached through every gateway, by both routes.
func (m *member) works(ctx context.Context) error {
	for _, p := range m.paths() {
		if _, err := p.get(ctx, "/whoami"); err != nil {
			return err
		}
	}
	return nil
}

// deaf is the condition that the member is reached through no gateway.
func (m *member) deaf(ctx context.Context) error {
	for _, p := range m.paths() {
		if who, err := p.get(ctx, "/whoami"); err == nil {
			return fmt.Errorf("%s: %s answers", p, who)
		}
	}
	return nil
}

// bootstrap is the file for an edge of the member.
func (m *member) bootstrap(t *testing.T) []byte {
	t.Helper()
	file, err := m.Bootstrap(t.Context())
	must(t, err)
	return file
}

// edge starts an edge for members, and waits until it carries their traffic.
func (w *world) edge(t *testing.T, spec lab.EdgeSpec, members ...*member) *lab.Agent {
	t.Helper()
	edge := w.startEdge(t, spec, members...)
	for _, m := range members {
		if err := lab.Wait(t.Context(), 2*patience, m.works); err != nil {
			t.Fatalf("waiting for the tunnel of %s: %v\n%s", m, err, lab.Tail(w.LogFile(spec.Name), 20))
		}
	}
	return edge
}

// startEdge starts an edge for members.
func (w *world) startEdge(t *testing.T, spec lab.EdgeSpec, members ...*member) *lab.Agent {
	t.Helper()
	hold(t, 1)() // not while TestRotations has the machine
	for _, m := range members {
		spec.Bootstraps = append(spec.Bootstraps, m.bootstrap(t))
	}
	edge, err := w.RunEdge(spec)
	must(t, err)
	return edge
}

// steal reads the one identity of an agent. An agent that has only just started may take a moment.
func steal(t *testing.T, a *lab.Agent) outsider.Stolen {
	t.Helper()
	var stolen outsider.Stolen
	eventually(t, func(context.Context) (err error) {
		stolen, err = outsider.Steal(domain, a.StateDir)
		return err
	})
	return stolen
}

// outsider is somebody in the workload network with a stolen identity.
func (w *world) outsider(stolen outsider.Stolen) outsider.Outsider {
	return outsider.Outsider{From: w.Network.Workload, Domain: domain, Roots: stolen.Roots, Certificate: &stolen.Certificate}
}

// roots is what the installation trusts now.
func (w *world) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	return steal(t, w.Gateways[0]).Roots
}

// status is an edge in the status of its Tunnel.
func (m *member) status(ctx context.Context, node string) (v1alpha1.EdgeStatus, error) {
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return v1alpha1.EdgeStatus{}, err
	}
	i := slices.IndexFunc(tunnel.Status.Edges, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == model.NodeID(node) })
	if i < 0 {
		return v1alpha1.EdgeStatus{}, fmt.Errorf("edge %s is not in the status of %s", node, m)
	}
	return tunnel.Status.Edges[i], nil
}

// carriedBy is the condition that requests for the member arrive from an edge at an address, and from no other.
func (m *member) carriedBy(address netip.Addr) func(context.Context) error {
	return func(ctx context.Context) error {
		for range 3 {
			for _, p := range m.paths() {
				who, err := p.get(ctx, "/whoami")
				if err != nil {
					return err
				}
				if _, from, _ := strings.Cut(who, " "); from != address.String() {
					return fmt.Errorf("%s: carried by %s, not %s", p, from, address)
				}
			}
		}
		return nil
	}
}

// says is the condition that a log has a line with all of the texts.
func (w *world) says(log string, texts ...string) func(context.Context) error {
	return func(context.Context) error { return lab.HasLine(w.LogFile(log), texts...) }
}

// held keeps a service down while a function runs.
func held(s *lab.Service, f func()) {
	s.Hold()
	defer s.Resume()
	f()
}

// stopEdge ends an edge with its Envoy, as the loss of its machine would.
func stopEdge(t *testing.T, a *lab.Agent) {
	t.Helper()
	a.Hold()
	if err := a.KillEnvoy(); err != nil && a.Envoy == nil {
		t.Logf("ending Envoy: %v", err)
	}
}

// took is how long a condition took to hold.
func took(t *testing.T, limit time.Duration, condition func(context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	must(t, lab.Wait(t.Context(), limit, condition))
	return time.Since(start)
}

// file is a path in the lab's folder.
func (w *world) file(elements ...string) string {
	return filepath.Join(append([]string{w.Dir}, elements...)...)
}
