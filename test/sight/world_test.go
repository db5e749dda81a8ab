package sight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// nameTime is how long check may take to name a fault after its injection, on a busy machine. Most faults are found
	// at once; reports of edges and gateways take as long as these need to notice.
	nameTime = 90 * time.Second
	// lookTime is the limit for results that an edge determines when it is queried, in 2.5 s at most.
	lookTime = 20 * time.Second
	// deadTime is the limit for faults that end tunnels silently, which takes 10 s at most; a dead control channel is
	// detected after 40 s.
	deadTime = 30 * time.Second
	// cureTime is the time from following a cure until check finds no problem.
	cureTime = 2 * time.Minute
	// streamTime is how long a watch must stay open here.
	streamTime = time.Second
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
	proof.Need(t)
	l, err := lab.New(t.Context(), lab.Options{
		Lean: true, Gateways: 2, XDSServers: 2, GatewayWorkers: workers, TunnelDomain: string(world.Domain),
		LogLevel: "info", Pages: true,
	})
	s := &sight{World: world.New(t, proof.Start(t, l, err))}
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

// checkAnswer is one answer of the command.
type checkAnswer struct {
	check.Report
	code int
	text string // for people
}

// check runs the command that an operator would run, in the management network.
func (s *sight) check(ctx context.Context, namespace, cluster string, more ...string) (checkAnswer, error) {
	args := append(
		[]string{"check", "-n", namespace, cluster, "-o", "json", "--watch-for=" + streamTime.String(), s.inspection()},
		more...)
	out, code, err := s.run(ctx, args...)
	if err != nil {
		return checkAnswer{}, err
	}
	answer := checkAnswer{code: code}
	if err := json.Unmarshal(out, &answer.Report); err != nil {
		return checkAnswer{}, fmt.Errorf("reading what check says: %w: %s", err, out)
	}
	return answer, nil
}

// inspection returns the flag with the addresses of the xds-servers, which have no Pods here.
func (s *sight) inspection() string {
	var all []string
	for i := range s.XDSServers {
		all = append(all, lab.InspectAddress(i))
	}
	return "--xds-server=" + strings.Join(all, ",")
}

// runLimiter limits how often tests run the command, because each run is a process.
var runLimiter = rate.NewLimiter(2, 4)

// run runs fairlead, and returns its output and its exit code.
func (s *sight) run(ctx context.Context, args ...string) (stdout []byte, code int, err error) {
	if err := runLimiter.Wait(ctx); err != nil {
		return nil, 0, err
	}
	cmd, err := s.command(ctx, args...)
	if err != nil {
		return nil, 0, err
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	stdout, err = cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(stdout) > 0 {
		return stdout, exit.ExitCode(), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("running fairlead %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return stdout, 0, nil
}

// commands keeps the management cluster's kubeconfig from being written while it is read.
var commands sync.Mutex

func (s *sight) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	commands.Lock()
	defer commands.Unlock()
	return s.Command(ctx, args...)
}

// green returns nil if check finds no problem of the room's own Cluster.
func (r *room) green(ctx context.Context) error { return r.world.healthy(ctx, r.Namespace, r.Name) }

// healthy returns nil if check finds no problem and has tested every hop.
func (s *sight) healthy(ctx context.Context, namespace, name string) error {
	answer, err := s.check(ctx, namespace, name)
	if err != nil {
		return err
	}
	if answer.Status != check.OK || answer.code != 0 {
		return fmt.Errorf("check says %s", answer)
	}
	for _, h := range answer.Hops {
		if h.Status != check.OK {
			return fmt.Errorf("the hop %s is %s: %s", h.ID, h.Status, h.Detail)
		}
	}
	return nil
}

func (a checkAnswer) String() string {
	v := a.Deciding()
	if v == nil {
		return fmt.Sprintf("%s (exit %d)", a.Status, a.code)
	}
	return fmt.Sprintf("%s (exit %d) at %s: %s; cause: %s; cure: %s", a.Status, a.code, v.ID, v.Detail, v.Cause, v.Cure)
}

// nowhere is an unused address of the workload network.
var nowhere = netip.MustParseAddr("10.111.2.250")
