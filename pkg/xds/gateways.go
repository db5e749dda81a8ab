package xds

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// notifyAtOnce is how many edges are notified together of a change of the gateways, and notifyInterval how long
	// the next ones wait, with jitter: 400 in a second. All 10,000 edges of an installation dial a new gateway, with
	// TLS, as soon as they receive it, and one core does about 1,000 such handshakes in a second.
	notifyAtOnce   = 100
	notifyInterval = 250 * time.Millisecond
)

// outdatedEdges are the edges that have not been notified yet of a change of the gateways or of their profile. The
// lock of the server guards them.
type outdatedEdges struct {
	waiting map[*edge]bool
	timer   *time.Timer // for the next of them; nil: none waits
	stopped bool
}

func newOutdatedEdges() outdatedEdges { return outdatedEdges{waiting: map[*edge]bool{}} }

func (t *outdatedEdges) stop() {
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// SetGateways replaces the gateways of the installation, in order. All must be valid. An empty list, and one that is
// equal to the current one, change nothing. Gateways are notified at once. Edges are notified a few at a time, in
// random order, because each of them then dials all new gateways. An edge that connects in the meantime receives all
// gateways.
func (s *Server) SetGateways(gateways []model.Gateway) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	gateways = slices.Clone(gateways)
	if len(gateways) == 0 || slices.Equal(gateways, s.inst.Gateways) {
		return
	}
	// Edges need neither zones nor, if every edge dials all gateways by each profile, what joins or leaves.
	current, next := s.profiles.current.inst, s.profiles.next.inst
	each := max(s.inst.GatewaysPerTunnel, current.GatewaysPerTunnel, next.GatewaysPerTunnel)
	nothingForEdges := slices.EqualFunc(gateways, s.inst.Gateways, func(a, b model.Gateway) bool {
		a.Zone, b.Zone = "", ""
		if each == 0 {
			a.Joining, a.Leaving, b.Joining, b.Leaving = false, false, false, false
		}
		return a == b
	})
	inst := s.inst
	inst.Gateways = gateways
	profiles := newProfiles(inst, s.target, s.profiles.record)
	s.mu.Lock()
	s.inst, s.profiles = inst, profiles
	s.mu.Unlock()
	s.log.Info(
		"gateways changed", "gateways", len(gateways), "first", gateways[0].Name, "last", gateways[len(gateways)-1].Name,
	)
	changes := newChanges()
	s.setCommon(changes)
	s.send(changes)
	s.setVariants()
	s.relisten()
	if !nothingForEdges {
		s.mu.Lock()
		for e := range s.edges {
			s.outdated.waiting[e] = true
		}
		s.notify()
		s.mu.Unlock()
	}
	s.publish()
}

// publish opens the server to streams once everything that they receive is known. The caller holds s.publishing.
func (s *Server) publish() {
	if s.replaced && len(s.inst.Gateways) > 0 && !s.Published() {
		close(s.published)
	}
}

// setCommon builds the Envoy clusters that every gateway has, and adds the changed ones to changes. The caller holds
// s.publishing.
func (s *Server) setCommon(changes changes) {
	static := set(envoy.StaticClusters(model.RoleGateway))
	// They depend on the installation alone, and refer to nothing.
	common, errs := check(s.profiles.gatewayClusters(s.profiles.current.inst), static, static)
	s.leftOut(resourcev3.ClusterType, errs)
	for name := range s.common {
		if common[name] == nil {
			changes.clusters[name] = nil
		}
	}
	for name, r := range common {
		if !same(s.common[name], r) {
			changes.clusters[name] = r
		}
	}
	s.common = common
	taken := namesOf(common, static)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = taken
}

// same reports whether a resource is equal to the previous one; nil: there was none.
func same(was, is types.Resource) bool { return was != nil && proto.Equal(was, is) }

// notify notifies some of the outdated edges, and starts the timer for the others. It does nothing while the timer
// runs. The caller holds s.mu.
func (s *Server) notify() {
	t := &s.outdated
	if t.timer != nil || t.stopped {
		return // the timer notifies them
	}
	s.notifySome()
}

func (s *Server) notifySome() {
	t := &s.outdated
	// The order of iteration of a map is random enough.
	told := 0
	for e := range t.waiting {
		if told++; told > notifyAtOnce {
			break
		}
		delete(t.waiting, e)
		e.update()
	}
	t.timer = nil
	if len(t.waiting) == 0 {
		return
	}
	t.timer = time.AfterFunc(jittered(notifyInterval), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !t.stopped {
			s.notifySome()
		}
	})
}

// jittered returns a random time from half of d to one and a half of d, so that several servers do not notify in
// step.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// admitGateway returns nil if a gateway is one of the installation, and else codes.Unavailable, because the gateways
// may soon be scaled up to it.
func (s *Server) admitGateway(name string) error {
	if slices.ContainsFunc(s.inst.Gateways, func(g model.Gateway) bool { return g.Name == name }) {
		return nil
	}
	return status.Errorf(
		codes.Unavailable,
		"%s is not a gateway of the installation (%s): scale the StatefulSet of the gateways up, or add it to --gateway of "+
			"every xds-server",
		name,
		s.gatewayNames(),
	)
}

// Gateways returns the names of the installation's gateways, in order; nil: they are not known yet.
func (s *Server) Gateways() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for _, g := range s.inst.Gateways {
		names = append(names, g.Name)
	}
	return names
}

// gatewayNames describes the gateways for messages.
func (s *Server) gatewayNames() string {
	switch n := len(s.inst.Gateways); n {
	case 0:
		return "unknown yet"
	case 1:
		return s.inst.Gateways[0].Name + " only"
	default:
		return s.inst.Gateways[0].Name + " to " + s.inst.Gateways[n-1].Name
	}
}
