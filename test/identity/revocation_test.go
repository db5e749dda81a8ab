package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// cutWithin bounds the time until the connections in an edge's tunnels are closed after its revocation.
const cutWithin = 10 * time.Second

// pair is a Cluster with an edge that will be revoked and one that stays, each in its own site.
type pair struct {
	*world.Member
	out, stay         *lab.Agent
	outSite, staySite *netns.Site
	outBootstrap      []byte
}

func (d *doors) pair(t *testing.T, name string) *pair {
	t.Helper()
	p := &pair{Member: d.Member(t, name, nil)}
	var err error
	p.outSite, err = d.AddSite(t.Context(), name+"-out")
	must(t, err)
	p.staySite, err = d.AddSite(t.Context(), name+"-stay")
	must(t, err)
	p.outBootstrap = p.BootstrapFile(t)
	p.out, err = d.RunEdge(
		lab.EdgeSpec{Name: "edge-" + name + "-out", Site: p.outSite.Namespace, Bootstraps: [][]byte{p.outBootstrap}},
	)
	must(t, err)
	p.stay = d.Edge(t, lab.EdgeSpec{Name: "edge-" + name + "-stay", Site: p.staySite.Namespace}, p.Member)
	return p
}

// streamsThrough opens streams until there is one through a given edge and each gateway. It returns these streams and
// closes the others.
func streamsThrough(t *testing.T, m *world.Member, site *netns.Site) []*traffic.Follower {
	t.Helper()
	var found []*traffic.Follower
	for gateway := range m.World.Gateways {
		path := m.Path(gateway, gateway%2 == 1)
		eventually(t, func(ctx context.Context) error {
			f, err := path.Follow(ctx)
			if err != nil {
				return err
			}
			if f.Edge != site.Address.String() {
				f.Close()
				return fmt.Errorf("%s: all streams go through %s", path, f.Edge)
			}
			found = append(found, f)
			return nil
		})
	}
	return found
}

// revocation proves how an edge is revoked.
func (d *doors) revocation(t *testing.T) {
	p := d.pair(t, "zurich")
	other := d.Member(t, "geneva", nil)
	d.Edge(t, lab.EdgeSpec{Name: "edge-geneva"}, other)
	stolen := world.Steal(t, p.out)
	lost, kept := streamsThrough(t, p.Member, p.outSite), streamsThrough(t, p.Member, p.staySite)
	elsewhere := traffic.Start(t, 60, 2, "/whoami", other.Paths()...)
	before := elsewhere.Count()

	that(t, "fairlead edge list shows every edge", func(t *testing.T) {
		out, err := d.Exec(t.Context(), "edge", "list", "--namespace", namespace)
		if err != nil || !strings.Contains(out, stolen.Subject.Node) ||
			!strings.Contains(out, world.Steal(t, p.stay).Subject.Node) {
			t.Errorf("%v: %s", err, out)
		}
	})
	that(t, "fairlead edge revoke closes the edge's connections on every gateway within 10 s", func(t *testing.T) {
		start := time.Now()
		out, err := d.Exec(t.Context(), "edge", "revoke", stolen.Subject.Node, d.Inspection())
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		cut(t, start, lost)
		measured("revoke_cut_s", time.Since(start).Seconds())
	})
	that(t, "streams of another edge of the same workload cluster continue after a revocation", func(t *testing.T) {
		for _, f := range kept {
			must(t, f.Alive())
		}
		eventually(t, p.CarriedBy(p.staySite.Address))
	})
	that(t, "streams of other workload clusters continue after a revocation", func(t *testing.T) {
		must(t, elsewhere.Unbroken(before))
	})
	that(t, "no gateway accepts a handshake of the revoked edge", func(t *testing.T) { d.noHandshake(t, stolen) })
	that(
		t, "a revoked edge receives no certificate and no configuration, and cannot report",
		func(t *testing.T) { d.nothingFor(t, stolen) },
	)
	that(
		t, "a revoked edge logs that it is revoked",
		func(t *testing.T) { eventually(t, d.LogContains("edge-zurich-out", "is revoked: enrol again")) },
	)
	that(t, "a revoked edge cannot enrol with its previous token", func(t *testing.T) { d.noWayBack(t, p) })
	that(t, "status shows when the edge was revoked", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			edge, err := p.EdgeStatus(ctx, stolen.Subject.Node)
			if err == nil && edge.RevokedAt == nil {
				err = errors.New("it has no revokedAt")
			}
			return err
		})
	})
	that(t, "a new edge on the same machine enrols with a new token", func(t *testing.T) {
		d.Edge(t, lab.EdgeSpec{Name: "edge-zurich-new", Site: p.outSite.Namespace}, p.Member)
		eventually(t, func(ctx context.Context) error { return p.SeenFrom(ctx, p.outSite) })
	})
	for _, f := range kept {
		must(t, f.Alive())
		f.Close()
	}
	elsewhere.Stop()
}

// cut fails the test unless all streams have ended in time.
func cut(t *testing.T, start time.Time, streams []*traffic.Follower) {
	t.Helper()
	for _, f := range streams {
		select {
		case <-f.Done():
		case <-time.After(time.Until(start.Add(cutWithin))):
			t.Fatalf("%s still goes on after %s", f.Path, cutWithin)
		}
	}
}

// noHandshake requests a tunnel from every gateway with a stolen identity. The order to close connections may arrive
// before Envoy's list of denied edges; tunnels that are opened in between are closed by that order.
func (d *doors) noHandshake(t *testing.T, stolen outsider.Stolen) {
	t.Helper()
	claim := outsider.Claim{Node: stolen.Subject.NodeID(), ID: domain.TunnelID(stolen.Subject.ID)}
	must(t, proc.Wait(t.Context(), cutWithin, func(ctx context.Context) error {
		for _, gateway := range []string{"gateway-0", "gateway-1"} {
			if code, err := d.Outsider(stolen).Handshake(ctx, gateway, claim); err == nil && code == http.StatusOK {
				return fmt.Errorf("%s gives it a tunnel", gateway)
			}
		}
		return nil
	}))
}

// nothingFor calls every method for edges with a stolen identity.
func (d *doors) nothingFor(t *testing.T, stolen outsider.Stolen) {
	if names, err := d.Outsider(stolen).Fetch(t.Context(), stolen.Subject.NodeID()); len(names) > 0 ||
		status.Code(err) != codes.FailedPrecondition {
		t.Errorf("ADS gives %q, %v; want FailedPrecondition", names, err)
	}
	conn, err := d.Outsider(stolen).Control()
	must(t, err)
	defer func() { _ = conn.Close() }()
	if _, err := enrolv1.NewEnrolmentClient(conn).Renew(t.Context(), &enrolv1.RenewRequest{Csr: csrFor(t)}); status.Code(
		err,
	) != codes.FailedPrecondition {
		t.Errorf("renewing gives %v, want FailedPrecondition", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), traffic.RequestTimeout)
	defer cancel()
	stream, err := reportv1.NewReportClient(conn).Edge(ctx)
	must(t, err)
	_ = stream.Send(&reportv1.EdgeReport{Form: "Process"})
	if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("reporting gives %v, want FailedPrecondition", err)
	}
}

// enrolTime returns more than an edge needs to enrol and to open its tunnels: less in the short form.
func enrolTime() time.Duration {
	if testing.Short() {
		return 2 * time.Second
	}
	return 4 * time.Second
}

// noWayBack starts the revoked edge again, first unchanged, then with an empty state folder. In neither case may it
// carry requests.
func (d *doors) noWayBack(t *testing.T, p *pair) {
	for _, forget := range []bool{false, true} {
		world.StopEdge(t, p.out)
		if forget {
			must(t, os.RemoveAll(p.out.StateDir))
			must(t, os.MkdirAll(p.out.StateDir, 0o700))
		}
		p.out.Resume()
		seen := func(ctx context.Context) error { return p.SeenFrom(ctx, p.outSite) }
		if err := proc.Wait(t.Context(), enrolTime(), seen); err == nil {
			t.Fatalf("it carries traffic again, with its state forgotten: %v", forget)
		}
		eventually(t, p.Works)
	}
	world.StopEdge(t, p.out)
}

// ends proves what happens to edges when their tunnel ends.
func (d *doors) ends(t *testing.T) {
	gone, moved, stays := d.Member(t, "gone", nil), d.Member(t, "moved", nil), d.Member(t, "stays", nil)
	edges := map[*world.Member]*lab.Agent{}
	for _, m := range []*world.Member{gone, moved, stays} {
		edges[m] = d.Edge(t, lab.EdgeSpec{Name: "edge-" + m.Name}, m)
	}
	open := func(m *world.Member) (all []*traffic.Follower) {
		for _, p := range m.Paths() {
			f, err := p.Follow(t.Context())
			must(t, err)
			all = append(all, f)
		}
		return all
	}
	lost, alive, undisturbed := open(gone), open(moved), open(stays)
	stolen := world.Steal(t, edges[gone])

	that(t, "removing a Cluster closes the connections in its tunnels on every gateway within 10 s", func(t *testing.T) {
		start := time.Now()
		must(t, gone.Delete(t.Context()))
		cut(t, start, lost)
		measured("end_cut_s", time.Since(start).Seconds())
	})
	that(t, "an edge of an ended tunnel gets no handshake, no certificate and no configuration", func(t *testing.T) {
		d.noHandshake(t, stolen)
		d.nothingFor(t, stolen)
	})
	that(t, "the agent of an ended tunnel logs it and continues to run", func(t *testing.T) {
		eventually(t, d.LogContains("edge-gone", "the tunnel", "has ended: its Cluster is gone"))
		must(t, edges[gone].Alive())
	})
	if !testing.Short() { // takes longer than cutWithin
		that(t, "a Cluster that is deleted while paused loses its route, but keeps open connections", func(t *testing.T) {
			deletedWhilePaused(t, moved, alive)
		})
	}
	that(t, "streams of other workload clusters continue after a removal", func(t *testing.T) {
		for _, f := range undisturbed {
			must(t, f.Alive())
		}
		must(t, stays.Works(t.Context()))
	})
	for _, f := range append(alive, undisturbed...) {
		f.Close()
	}
}

// deletedWhilePaused proves that streams through the tunnel of a Cluster continue when it is moved away.
func deletedWhilePaused(t *testing.T, moved *world.Member, alive []*traffic.Follower) {
	moveAway(t, moved)
	eventually(t, moved.Unreachable)
	start := time.Now()
	must(t, proc.Wait(t.Context(), 2*cutWithin, func(context.Context) error {
		for _, f := range alive {
			if err := f.Alive(); err != nil {
				t.Fatal(err)
			}
		}
		if time.Since(start) < cutWithin+2*time.Second {
			return errors.New("too early to tell")
		}
		return nil
	}))
}

// moveAway changes a Cluster like clusterctl move does at the source: it pauses the Cluster, and later deletes
// everything without waiting for finalizers, dependents first.
func moveAway(t *testing.T, m *world.Member) {
	t.Helper()
	must(t, m.Patch(t.Context(), map[string]any{"spec": map[string]any{"paused": true}}))
	eventually(t, m.Condition(v1alpha1.ConditionPaused, "True"))
	tunnel, err := m.Tunnel(t.Context())
	must(t, err)
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	must(t, m.World.Management.Client.Patch(t.Context(), tunnel, none))
	must(t, client.IgnoreNotFound(m.World.Management.Client.Delete(t.Context(), tunnel)))
	must(t, m.Delete(t.Context()))
}
