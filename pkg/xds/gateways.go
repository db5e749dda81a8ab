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
	// tellAtOnce is how many edges are told together of a change of the gateways, and tellInterval how long the next ones wait,
	// more or less: 400 in a second. All 10,000 of an installation dial a new gateway, with TLS, as soon as they know it, and
	// one core does about 1,000 such handshakes in a second.
	tellAtOnce   = 100
	tellInterval = 250 * time.Millisecond
)

// telling are the edges that have not been told yet of a change of the gateways.
type telling struct {
	waiting map[*edge]bool
	timer   *time.Timer // for the next of them; nil: nobody waits
	stopped bool
}

func newTelling() telling { return telling{waiting: map[*edge]bool{}} }

func (t *telling) stop() {
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// SetGateways replaces the gateways of the installation, in order: there must be at least one, and all must be valid. Gateways are told at
// once. Edges are told a few at a time, in random order, for each then dials all that are new; one that connects meanwhile
// learns of all of them. What is equal to what was is told nobody.
func (s *Server) SetGateways(gateways []model.Gateway) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if len(gateways) == 0 || slices.Equal(gateways, s.inst.Gateways) {
		return
	}
	gateways = slices.Clone(gateways)
	s.mu.Lock()
	s.inst.Gateways = gateways
	s.profiles = newProfiles(s.inst, s.target, s.profiles.record)
	s.mu.Unlock()
	s.log.Info("gateways changed", "gateways", len(gateways), "first", gateways[0].Name, "last", gateways[len(gateways)-1].Name)
	changes := changes{}
	s.setCommon(changes)
	s.send(changes)
	s.setVariants()
	s.relisten()
	s.mu.Lock()
	for e := range s.edges {
		s.telling.waiting[e] = true
	}
	s.tell()
	s.mu.Unlock()
	s.publish()
}

// publish lets every caller in once all is known that they get. The caller holds s.publishing.
func (s *Server) publish() {
	if s.replaced && len(s.inst.Gateways) > 0 && !s.Published() {
		close(s.published)
	}
}

// setCommon makes the Envoy clusters that every gateway has, and notes which of them change. The caller holds s.publishing.
func (s *Server) setCommon(changes changes) {
	static := set(envoy.StaticClusters())
	// They all depend on the installation alone, and refer to nothing.
	common, errs := check(envoy.GatewayClusters(s.profiles.current.inst), static, static)
	s.leftOut(resourcev3.ClusterType, errs)
	for name := range s.common {
		if common[name] == nil {
			changes[name] = nil
		}
	}
	for name, r := range common {
		if !same(s.common[name], r) {
			changes[name] = r
		}
	}
	s.common, s.taken = common, namesOf(common, static)
}

// same says whether a resource is what it was; nil: there was none.
func same(was, is types.Resource) bool { return was != nil && proto.Equal(was, is) }

// tell tells some of those who wait, and comes back for the others.
func (s *Server) tell() {
	t := &s.telling
	if t.timer != nil || t.stopped {
		return // its turn comes
	}
	s.tellSome()
}

func (s *Server) tellSome() {
	t := &s.telling
	// A map is walked in an order that is random enough.
	told := 0
	for e := range t.waiting {
		if told++; told > tellAtOnce {
			break
		}
		delete(t.waiting, e)
		e.update()
	}
	t.timer = nil
	if len(t.waiting) == 0 {
		return
	}
	t.timer = time.AfterFunc(jittered(tellInterval), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !t.stopped {
			s.tellSome()
		}
	})
}

// jittered is a time from half to one and a half of another, so that several servers don't tell theirs in step.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// admitGateway says whether a gateway is one of the installation's: nil, or codes.Unavailable, because it may be scaled up to
// that soon.
func (s *Server) admitGateway(name string) error {
	if slices.ContainsFunc(s.inst.Gateways, func(g model.Gateway) bool { return g.Name == name }) {
		return nil
	}
	return status.Errorf(codes.Unavailable, "%s is not a gateway of the installation (%s): scale the StatefulSet of the gateways up, or add it to --gateway of every xds-server",
		name, s.gatewayNames())
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

// gatewayNames are the gateways as people are told of them.
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
