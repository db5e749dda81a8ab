package edge

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/retry"
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
	// followInterval is how often the addresses are read again.
	followInterval = 2 * time.Second
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
	addresses []model.Endpoint // in order; fewer than two: there is no choice
	form      string           // of the Envoy clusters of all gateways
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

// Restore decides by the cached Envoy clusters and earlier measurements. Call it before Envoy is served, so that a
// running Envoy keeps its preference.
func (n *Nearest) Restore(cached clusters) {
	n.follow(cached)
	n.decide()
}

// Run measures the round trips to the gateways until ctx ends, as long as Envoy has such clients and there are several
// addresses: at an interval, and when the addresses change. It calls measured each time.
func (n *Nearest) Run(ctx context.Context, sent clusters, measured func()) {
	var last time.Time
	for ctx.Err() == nil {
		hosts, changed := n.follow(sent)
		if changed || len(hosts) > 0 && time.Since(last) >= nearestInterval {
			last = time.Now()
			n.meter.Measure(ctx, hosts)
			if n.decide() {
				sent.ReapplyAll(envoy.IsSharedGateways)
			}
			measured()
		}
		_ = retry.Sleep(ctx, followInterval)
	}
}

// follow returns the addresses of the gateways by themselves, and whether they have changed.
func (n *Nearest) follow(sent clusters) (hosts map[string]model.Endpoint, changed bool) {
	hosts = map[string]model.Endpoint{}
	sent.Clusters(func(name, _ string, resource *anypb.Any) {
		if !envoy.IsSharedGateways(name) {
			return
		}
		for _, at := range envoy.SharedGateways(resource) {
			hosts[at.String()] = at
		}
	})
	if len(hosts) < 2 {
		clear(hosts)
	}
	addresses := slices.SortedFunc(maps.Values(hosts), func(a, b model.Endpoint) int {
		return strings.Compare(a.String(), b.String())
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	changed = !slices.Equal(addresses, n.addresses)
	n.addresses = addresses
	return hosts, changed
}

// decide computes the form from the classes, and reports whether it has changed.
func (n *Nearest) decide() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var parts []string
	for _, at := range n.addresses {
		parts = append(parts, at.String()+nearestRank+strconv.Itoa(n.meter.Class(at.String())))
	}
	form := ""
	if len(parts) > 0 {
		form = nearestForm + strings.Join(parts, nearestAddresses)
	}
	if form == n.form {
		return false
	}
	n.form = form
	return true
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
	return n.form
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
