package sight

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// lookTime is the limit for results that an edge determines when it is queried, in 2.5 s at most.
	lookTime = 20 * time.Second
	// deadTime is the limit for faults that end tunnels silently, which takes 10 s at most; a dead control channel is
	// detected after 40 s.
	deadTime = 30 * time.Second
)

// sight is an installation with workload clusters, each in its own site.
type sight struct {
	*world.World
	rooms []*room
}

// room is a site with a workload cluster: an etcd, an apiserver and an edge.
type room struct {
	*lab.Cluster
	world *sight
	site  *netns.Site
	api   *kube.SiteAPIServer
	edge  *lab.Agent
	name  string
	fresh int      // number of edges so far
	flags []string // additional flags of the command
}

// newSight starts the installation, with the given rooms.
func newSight(t *testing.T, rooms ...string) *sight {
	t.Helper()
	s := &sight{World: world.Start(t, &proof, lab.Options{
		Lean: true, WithoutWorkload: true, Gateways: 2, XDSServers: 2, GatewayWorkers: workers, LogLevel: "info", Pages: true,
	})}
	var group errgroup.Group
	for _, name := range rooms {
		site, err := s.AddSite(t.Context(), name)
		must(t, err)
		r := &room{world: s, site: site, name: name}
		s.rooms = append(s.rooms, r)
		group.Go(func() (err error) {
			r.api, err = s.StartSiteAPIServer(t.Context(), site, name, world.HostnameIn("room-"+name, name))
			return err
		})
	}
	must(t, group.Wait())
	for _, r := range s.rooms {
		r.open(t)
	}
	return s
}

// workers is the number of workers of each gateway.
const workers = 2

// open creates the Cluster of a room, and starts its edge.
func (r *room) open(t *testing.T) {
	t.Helper()
	var err error
	r.Cluster, err = r.world.CreateCluster(
		t.Context(),
		lab.ClusterSpec{
			Name:      r.name,
			Namespace: "room-" + r.name,
			APIServer: r.api.APIServer,
			Mode:      v1alpha1.KubeconfigModeSNI,
		},
	)
	must(t, err)
	must(t, r.SetProvisioned(t.Context()))
	r.enrol(t)
}

// enrol starts an edge with the newest bootstrap file. An earlier edge must have been stopped.
func (r *room) enrol(t *testing.T, change ...func(*lab.EdgeSpec)) {
	t.Helper()
	bootstrap, err := r.Bootstrap(t.Context())
	must(t, err)
	r.fresh++
	spec := lab.EdgeSpec{
		Name:       fmt.Sprintf("edge-%s-%d", r.name, r.fresh),
		Bootstraps: [][]byte{bootstrap},
		Site:       r.site.Namespace,
	}
	for _, c := range change {
		c(&spec)
	}
	r.edge, err = r.world.RunEdge(spec)
	must(t, err)
}

// output runs fairlead, and returns its output and its exit code.
func (s *sight) output(ctx context.Context, args ...string) (stdout []byte, code int, err error) {
	return faults.Output(ctx, s.Lab, args...)
}

// nowhere is an unused address of the workload network.
var nowhere = netip.MustParseAddr("10.111.2.250")
