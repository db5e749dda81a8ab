package edge

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/trips"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// nearestFile holds the classes of the addresses of the gateways.
	nearestFile = "gateway-trips.json"
	// nearestInterval is the interval at which the round trips are measured, each of which costs about 300 bytes.
	nearestInterval = 30 * time.Second
	// nearestForm begins the form of an Envoy cluster of all gateways, followed by addresses and their classes.
	nearestForm                   = "near:"
	nearestAddresses, nearestRank = ",", "=" // between addresses, and before a class
)

// Nearest has Envoy use the nearest of the gateways where it opens the connections of clients itself: those of the
// machines of a network to their apiserver, and those of an apiserver to networks. Reverse tunnels need no preference,
// because all of them are open. It implements xdsproxy.Override.
type Nearest struct {
	meter *trips.Meter

	mu        sync.Mutex
	addresses []model.Endpoint // in order
}

// clusters are the Envoy clusters that an agent offers its Envoy. *xdsproxy.Proxy implements it.
type clusters interface {
	Clusters(f func(name, version string, resource *anypb.Any))
	ReapplyAll(of func(name string) bool)
}

// NewNearest returns the Nearest of an agent, with what an earlier agent has measured in its folder.
func NewNearest(path func(name string) string, log *slog.Logger) *Nearest {
	return &Nearest{meter: trips.New(path(nearestFile), log)}
}

// Run measures the round trips to the gateways until ctx ends, as long as Envoy has such clients and there are several
// addresses. It calls changed when the result of Ways has another order.
func (n *Nearest) Run(ctx context.Context, sent clusters, changed func()) {
	n.meter.Run(ctx, nearestInterval, func() map[string]model.Endpoint {
		return n.follow(sent)
	}, func() {
		sent.ReapplyAll(envoy.IsSharedGateways)
		changed()
	})
}

// follow returns the addresses of the gateways by themselves.
func (n *Nearest) follow(sent clusters) map[string]model.Endpoint {
	hosts := map[string]model.Endpoint{}
	sent.Clusters(func(_, _ string, resource *anypb.Any) {
		for _, at := range envoy.SharedGateways(resource) {
			hosts[at.String()] = at
		}
	})
	if len(hosts) < 2 {
		clear(hosts)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses = n.addresses[:0]
	for _, at := range hosts {
		n.addresses = append(n.addresses, at)
	}
	slices.SortFunc(n.addresses, func(a, b model.Endpoint) int { return strings.Compare(a.String(), b.String()) })
	return hosts
}

// Ways returns the addresses of the gateways for reports, the nearest first.
func (n *Nearest) Ways() (to []*reportv1.Way) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, at := range n.addresses {
		name := at.String()
		to = append(to, &reportv1.Way{
			To: name, Rank: uint32(n.meter.Class(name)), RoundTripMicros: uint32(n.meter.Of(name).Microseconds()),
		})
	}
	slices.SortStableFunc(to, func(a, b *reportv1.Way) int { return cmp.Compare(a.GetRank(), b.GetRank()) })
	return to
}

// Form implements xdsproxy.Override.
func (n *Nearest) Form(name string) string {
	if !envoy.IsSharedGateways(name) {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var parts []string
	for _, at := range n.addresses {
		parts = append(parts, at.String()+nearestRank+strconv.Itoa(n.meter.Class(at.String())))
	}
	if len(parts) == 0 {
		return ""
	}
	return nearestForm + strings.Join(parts, nearestAddresses)
}

// Apply implements xdsproxy.Override.
func (n *Nearest) Apply(_, form string, resource *anypb.Any) *anypb.Any {
	text, ok := strings.CutPrefix(form, nearestForm)
	if !ok {
		return resource
	}
	classes := map[string]int{}
	for part := range strings.SplitSeq(text, nearestAddresses) {
		at, class, _ := strings.Cut(part, nearestRank)
		classes[at], _ = strconv.Atoi(class)
	}
	return envoy.PreferNearest(resource, func(at model.Endpoint) int {
		if class, ok := classes[at.String()]; ok {
			return class
		}
		return trips.Unknown
	})
}
