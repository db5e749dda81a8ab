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
	// nameTime is how long check may take to name a fault after it was injected, on a busy machine: most are known at once, what edges and
	// gateways say takes as long as they need to notice.
	nameTime = 90 * time.Second
	// lookTime is the same for what an edge sees when it is asked, in 2.5 s at most.
	lookTime = 20 * time.Second
	// deadTime is the same for what ends tunnels without a word, in 10 s at most; the control channel is found out after 40.
	deadTime = 30 * time.Second
	// cureTime is how long it may take until all is well again after its cure was followed.
	cureTime = 2 * time.Minute
	// streamTime is for how long a watch has to stay open here.
	streamTime = time.Second
)

// sight is an installation with workload clusters, each in a machine room of its own.
type sight struct {
	*world.World
	rooms []*room
}

// room is a machine room with a workload cluster: an etcd, an apiserver and an edge.
type room struct {
	*lab.Cluster
	world *sight
	site  *netns.Site
	api   *kube.SiteAPIServer
	edge  *lab.Agent
	name  string
	fresh int      // how many edges it has had
	flags []string // more flags for the command
}

// newSight starts the installation, with so many rooms.
func newSight(t *testing.T, rooms ...string) *sight {
	t.Helper()
	proof.Need(t)
	l, err := lab.New(t.Context(), lab.Options{
		Lean: true, Gateways: 2, XDSServers: 2, GatewayWorkers: workers, TunnelDomain: string(world.Domain), LogLevel: "info", Pages: true,
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

// workers is how many each gateway has.
const workers = 2

// open makes the Cluster of a room, and starts its edge.
func (r *room) open(t *testing.T) {
	t.Helper()
	var err error
	r.Cluster, err = r.world.CreateCluster(t.Context(), lab.ClusterSpec{Name: r.name, Namespace: "room-" + r.name, APIServer: r.api.APIServer, Mode: v1alpha1.KubeconfigModeSNI})
	must(t, err)
	must(t, r.SetProvisioned(t.Context()))
	r.enrol(t)
}

// enrol starts an edge with the newest bootstrap file. One that ran before must have been stopped.
func (r *room) enrol(t *testing.T, change ...func(*lab.EdgeSpec)) {
	t.Helper()
	bootstrap, err := r.Bootstrap(t.Context())
	must(t, err)
	r.fresh++
	spec := lab.EdgeSpec{Name: fmt.Sprintf("edge-%s-%d", r.name, r.fresh), Bootstraps: [][]byte{bootstrap}, Site: r.site.Namespace}
	for _, c := range change {
		c(&spec)
	}
	r.edge, err = r.world.RunEdge(spec)
	must(t, err)
}

// said is one answer of the command.
type said struct {
	check.Report
	code int
	text string // as people read it
}

// check runs the command that a person would give, in the management network.
func (s *sight) check(ctx context.Context, namespace, cluster string, more ...string) (said, error) {
	args := append([]string{"check", "-n", namespace, cluster, "-o", "json", "--watch-for=" + streamTime.String(), s.inspection()}, more...)
	out, code, err := s.run(ctx, args...)
	if err != nil {
		return said{}, err
	}
	answer := said{code: code}
	if err := json.Unmarshal(out, &answer.Report); err != nil {
		return said{}, fmt.Errorf("reading what check says: %w: %s", err, out)
	}
	return answer, nil
}

// inspection says where the xds-servers are asked, which have no Pods here.
func (s *sight) inspection() string {
	var all []string
	for i := range s.XDSServers {
		all = append(all, lab.InspectAddress(i))
	}
	return "--xds-server=" + strings.Join(all, ",")
}

// pace keeps those who wait from asking all the time: each question is a process.
var pace = rate.NewLimiter(2, 4)

// run runs fairlead, and returns what it prints and its exit code.
func (s *sight) run(ctx context.Context, args ...string) (stdout []byte, code int, err error) {
	if err := pace.Wait(ctx); err != nil {
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

// green is the condition that check finds nothing at the room's own Cluster.
func (r *room) green(ctx context.Context) error { return r.world.well(ctx, r.Namespace, r.Name) }

// well is the condition that check finds nothing, and has tested every hop.
func (s *sight) well(ctx context.Context, namespace, name string) error {
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

func (a said) String() string {
	v := a.Verdict()
	if v == nil {
		return fmt.Sprintf("%s (exit %d)", a.Status, a.code)
	}
	return fmt.Sprintf("%s (exit %d) at %s: %s; cause: %s; cure: %s", a.Status, a.code, v.ID, v.Detail, v.Cause, v.Cure)
}

// nowhere is an address of the workload network that nobody has.
var nowhere = netip.MustParseAddr("10.111.2.250")
