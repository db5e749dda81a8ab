package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// leaseFlag sets the controller's default. Labs usually set a shorter lease.
	leaseFlag = "--leader-elect-lease=8s"
	// gap bounds the time without acknowledgements, signatures and status after any server has been killed.
	gap = 15 * time.Second
	// calmRate is how many requests per second continue meanwhile.
	calmRate = 20
)

// servers is an installation with several servers of each kind.
type servers struct {
	*world.World
	steady  *world.Member
	load    *traffic.Load
	joined  int
	tunnels []map[netip.AddrPort]int // tunnels of the steady edge by gateway, before any server was killed
	since   metav1.Time              // when the edge's Tunnel became ready
}

// TestNoSingleServerIsRequired proves that no single server is needed.
func TestNoSingleServerIsRequired(t *testing.T) {
	inTurn(t)
	s := &servers{
		World: newWorld(t, lab.Options{
			Gateways: 2, XDSServers: 2, Controllers: 2, Lean: true, WithoutWorkload: true,
			ControllerFlags: []string{leaseFlag},
		}),
	}
	s.steady = s.Member(t, "steady", nil)
	s.Edge(t, lab.EdgeSpec{Name: "edge-steady"}, s.steady)
	s.load = traffic.Start(t, calmRate, 1, "/whoami", s.steady.Paths()...)
	that(t, "an edge with clients has lanes to each gateway besides its usual reverse tunnels", s.note)
	that(t, "each xds-server issues certificates and serves configuration while the other is down", func(t *testing.T) {
		for i, server := range s.XDSServers {
			measured(fmt.Sprintf("without_xds_server_%d_s", i), s.without(t, server).Seconds())
		}
	})
	that(
		t,
		"the standby controller signs and writes status soon after the leader is killed",
		func(t *testing.T) {
			measured("without_leader_s", s.without(t, s.leader(t)).Seconds())
		},
	)
	that(t, "killing the standby controller has no effect", func(t *testing.T) {
		leader := s.leader(t)
		for _, c := range s.Controllers {
			if c != leader {
				measured("without_follower_s", s.without(t, c).Seconds())
			}
		}
	})
	that(t, "no request failed and no stream broke during these failures", func(t *testing.T) {
		must(t, s.load.Unbroken(traffic.Mark{}))
		s.load.Stop()
	})
	that(t, "every reverse tunnel stays open, and status always shows it", s.unchanged)
	s.Logs(t)
}

// note records the state that must not change.
func (s *servers) note(t *testing.T) {
	t.Helper()
	eventually(t, s.steady.Condition(v1alpha1.ConditionTunnelReady, "True"))
	eventually(t, func(context.Context) error {
		s.tunnels = nil
		for _, g := range s.Gateways {
			live, err := liveTunnels(g)
			if want := len(s.Gateways) * 2; err == nil && len(live) != want { // to each address of the gateways
				err = fmt.Errorf("%d tunnels, want %d", len(live), want)
			}
			if err != nil {
				return err
			}
			if err := hasLanes(g); err != nil {
				return err
			}
			s.tunnels = append(s.tunnels, live)
		}
		return nil
	})
	s.since = s.ready(t)
}

// hasLanes returns an error if a gateway has no lane of an edge whose tunnels all lead to it.
func hasLanes(gateway *lab.Agent) error {
	n, err := liveLanes(gateway)
	if err == nil && n < model.TunnelsInLanes(1) {
		err = fmt.Errorf("%d tunnels of lanes, want %d at least", n, model.TunnelsInLanes(1))
	}
	return err
}

// ready returns since when the steady Tunnel is ready.
func (s *servers) ready(t *testing.T) metav1.Time {
	t.Helper()
	tunnel, err := s.steady.Tunnel(t.Context())
	must(t, err)
	c := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionTunnelReady)
	if c == nil || c.Status != metav1.ConditionTrue {
		t.Fatalf("the condition is %+v", c)
	}
	return c.LastTransitionTime
}

func (s *servers) unchanged(t *testing.T) {
	for i, g := range s.Gateways {
		live, err := liveTunnels(g)
		must(t, err)
		for peer := range s.tunnels[i] {
			if _, ok := live[peer]; !ok {
				t.Errorf("the tunnel of %s to gateway-%d was lost", peer, i)
			}
		}
	}
	if now := s.ready(t); !now.Equal(&s.since) {
		t.Errorf("the Tunnel is ready since %s, and was since %s", now, s.since)
	}
}

// without kills a server, and starts it again at the end. It returns how long it took after the kill until a new
// Cluster's edge has its certificate, both gateways route to it, and its status is correct.
func (s *servers) without(t *testing.T, server *proc.Service) time.Duration {
	t.Helper()
	s.joined++
	name := fmt.Sprintf("joins-%d", s.joined)
	start := time.Now()
	server.Hold()
	member := s.Member(t, name, nil)
	edge := s.StartEdge(t, lab.EdgeSpec{Name: "edge-" + name}, member)
	eventually(t, s.LogContains("edge-"+name, "certificate obtained"))
	signed := time.Since(start)
	eventually(t, member.Works)
	routed := time.Since(start)
	eventually(t, member.Condition(v1alpha1.ConditionTunnelReady, "True"))
	took := time.Since(start)
	t.Logf("signed after %s, routed after %s, told after %s", signed, routed, took)
	world.StopEdge(t, edge)
	server.Resume()
	if took > gap {
		t.Errorf("it took %s", took)
	}
	return took
}

// leader returns the controller that holds the lease: the last one to log that.
func (s *servers) leader(t *testing.T) *proc.Service {
	t.Helper()
	var leader *proc.Service
	eventually(t, func(context.Context) error {
		var latest time.Time
		leader = nil
		for i, c := range s.Controllers {
			name := "controller"
			if i > 0 {
				name = fmt.Sprintf("controller-%d", i)
			}
			lines, err := proc.Lines(s.LogFile(name), "acquired lease")
			if err != nil || len(lines) == 0 {
				continue
			}
			stamp, _, _ := strings.Cut(strings.TrimPrefix(lines[len(lines)-1], "time="), " ")
			at, err := time.Parse(time.RFC3339, stamp)
			if err != nil {
				return err
			}
			if at.After(latest) {
				latest, leader = at, c
			}
		}
		if leader == nil {
			return fmt.Errorf("none of %d controllers leads", len(s.Controllers))
		}
		return leader.Alive()
	})
	return leader
}
