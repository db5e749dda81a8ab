// Package world is an installation of Fairlead with workload clusters whose apiservers are stand-ins, the base of most
// end-to-end proofs. Its input is a running lab. Its output is Clusters, edges, paths to them, and conditions on their
// state.
package world

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
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/traffic"
)

// Domain is the tunnel domain of every installation here.
const Domain model.TunnelDomain = "tunnels.example.test"

// Namespace is where the Clusters are.
const Namespace = "shops"

// World is an installation to which a test can add Clusters and edges.
type World struct {
	*lab.Lab
	// Before, if not nil, is called before anything is started.
	Before    func(t *testing.T)
	authority *pki.Authority // of all stand-ins
	ports     atomic.Int32   // used by stand-ins
}

// Start starts an installation of a proof that ends with the test. Its tunnel domain is Domain.
func Start(t *testing.T, p *promise.Proof, options lab.Options) *World {
	t.Helper()
	p.Need(t)
	options.TunnelDomain = string(Domain)
	l, err := lab.New(t.Context(), options)
	return New(t, p.Start(t, l, err))
}

// New returns a World of a running lab, whose tunnel domain must be Domain.
func New(t *testing.T, l *lab.Lab) *World {
	t.Helper()
	authority, err := pki.NewAuthority("stand-ins")
	promise.Must(t, err)
	return &World{Lab: l, authority: authority}
}

// Member is a Cluster whose apiserver is a stand-in.
type Member struct {
	*lab.Cluster
	World    *World
	StandIn  *StandIn
	Hostname string
}

// Member creates a Cluster and a stand-in for it in the workload network. spec holds the fields that a user sets in the
// Tunnel.
func (w *World) Member(t *testing.T, name string, spec map[string]any) *Member {
	t.Helper()
	return w.MemberAt(t, name, w.StandIn(t, name, w.Network.Workload, w.Network.WorkloadAddress()), spec)
}

// MemberAt is Member with a given stand-in.
func (w *World) MemberAt(t *testing.T, name string, s *StandIn, spec map[string]any) *Member {
	t.Helper()
	cluster, err := w.CreateCluster(
		t.Context(),
		lab.ClusterSpec{Name: name, Namespace: Namespace, APIServer: s.APIServer, Mode: v1alpha1.KubeconfigModeSNI},
	)
	promise.Must(t, err)
	if spec != nil {
		promise.Must(t, cluster.PatchTunnel(t.Context(), spec))
	}
	return &Member{Cluster: cluster, World: w, StandIn: s, Hostname: Hostname(name)}
}

// StandIn starts a stand-in for the apiserver of a Cluster.
func (w *World) StandIn(t *testing.T, cluster string, in *netns.Namespace, address netip.Addr) *StandIn {
	t.Helper()
	port := 9000 + w.ports.Add(1)
	return NewStandIn(
		t, fmt.Sprintf("%s:%d", cluster, port), in, netip.AddrPortFrom(address, uint16(port)), w.authority, Hostname(cluster),
	)
}

// Hostname returns the tunnel hostname of a Cluster in the tests' Namespace.
func Hostname(cluster string) string {
	name, err := Domain.Hostname(model.Key{Namespace: Namespace, Name: cluster})
	if err != nil {
		panic(err) // the input is constant
	}
	return name
}

// HostnameIn returns the tunnel hostname of a Cluster in another namespace.
func HostnameIn(namespace, cluster string) string {
	name, err := Domain.Hostname(model.Key{Namespace: namespace, Name: cluster})
	if err != nil {
		panic(err) // the input is constant
	}
	return name
}

// Path returns a path to the member.
func (m *Member) Path(gateway int, connect bool) traffic.Path {
	return traffic.Path{
		From: m.World.Network.Management, Gateway: gateway, Connect: connect, Hostname: m.Hostname, ServerName: "kubernetes",
		Roots: m.StandIn.Roots, Family: m.World.Network.Family(),
	}
}

// Paths returns all paths to the member.
func (m *Member) Paths() []traffic.Path {
	var all []traffic.Path
	for i := range m.World.Gateways {
		all = append(all, m.Path(i, false), m.Path(i, true))
	}
	return all
}

// Works returns nil if the member is reachable through every gateway, by both routes.
func (m *Member) Works(ctx context.Context) error {
	for _, p := range m.Paths() {
		if _, err := p.Get(ctx, "/whoami"); err != nil {
			return err
		}
	}
	return nil
}

// Unreachable returns nil if the member is not reachable through any gateway.
func (m *Member) Unreachable(ctx context.Context) error {
	for _, p := range m.Paths() {
		if who, err := p.Get(ctx, "/whoami"); err == nil {
			return fmt.Errorf("%s: %s answers", p, who)
		}
	}
	return nil
}

// BootstrapFile returns the file for an edge of the member.
func (m *Member) BootstrapFile(t *testing.T) []byte {
	t.Helper()
	file, err := m.Bootstrap(t.Context())
	promise.Must(t, err)
	return file
}

// Edge starts an edge for members, and waits until it carries their traffic.
func (w *World) Edge(t *testing.T, spec lab.EdgeSpec, members ...*Member) *lab.Agent {
	t.Helper()
	edge := w.StartEdge(t, spec, members...)
	for _, m := range members {
		if err := proc.Wait(t.Context(), 2*promise.Patience, m.Works); err != nil {
			t.Fatalf("waiting for the tunnel of %s: %v\n%s", m, err, proc.Tail(w.LogFile(spec.Name), 20))
		}
	}
	return edge
}

// StartEdge starts an edge for members.
func (w *World) StartEdge(t *testing.T, spec lab.EdgeSpec, members ...*Member) *lab.Agent {
	t.Helper()
	if w.Before != nil {
		w.Before(t)
	}
	for _, m := range members {
		spec.Bootstraps = append(spec.Bootstraps, m.BootstrapFile(t))
	}
	edge, err := w.RunEdge(spec)
	promise.Must(t, err)
	return edge
}

// Steal reads the only identity of an agent. It waits for an agent that has just started.
func Steal(t *testing.T, a *lab.Agent) outsider.Stolen {
	t.Helper()
	var stolen outsider.Stolen
	promise.Eventually(t, func(context.Context) (err error) {
		stolen, err = outsider.Steal(Domain, a.StateDir)
		return err
	})
	return stolen
}

// Outsider returns an attacker in the workload network with a stolen identity.
func (w *World) Outsider(stolen outsider.Stolen) outsider.Outsider {
	return outsider.Outsider{
		From:        w.Network.Workload,
		Domain:      Domain,
		Roots:       stolen.Roots,
		Certificate: &stolen.Certificate,
	}
}

// Roots returns the current trust bundle of the installation.
func (w *World) Roots(t *testing.T) *x509.CertPool {
	t.Helper()
	return Steal(t, w.Gateways[0]).Roots
}

// EdgeStatus returns an edge from the status of its Tunnel.
func (m *Member) EdgeStatus(ctx context.Context, node string) (v1alpha1.EdgeStatus, error) {
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

// CarriedBy returns a condition that is nil once requests for the member arrive only from an edge at an address.
func (m *Member) CarriedBy(address netip.Addr) func(context.Context) error {
	return func(ctx context.Context) error {
		for range 3 {
			for _, p := range m.Paths() {
				who, err := p.Get(ctx, "/whoami")
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

// LogContains returns a condition that is nil once a log has a line with all of the texts.
func (w *World) LogContains(log string, texts ...string) func(context.Context) error {
	return func(context.Context) error { return proc.HasLine(w.LogFile(log), texts...) }
}

// StopEdge kills an edge with its Envoy, like the loss of its machine.
func StopEdge(t *testing.T, a *lab.Agent) {
	t.Helper()
	a.Hold()
	if err := a.KillEnvoy(); err != nil && a.Envoy == nil {
		t.Logf("ending Envoy: %v", err)
	}
}

// Took waits for a condition, and returns how long that took.
func Took(t *testing.T, limit time.Duration, condition func(context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	promise.Must(t, proc.Wait(t.Context(), limit, condition))
	return time.Since(start)
}

// File returns a path in the lab's folder.
func (w *World) File(elements ...string) string {
	return filepath.Join(append([]string{w.Dir}, elements...)...)
}
