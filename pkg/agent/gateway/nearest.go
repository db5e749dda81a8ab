package gateway

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// tripsInterval is the interval at which the round trips to the other gateways are measured.
	tripsInterval = 10 * time.Second
	// tripsFile holds the classes of the other gateways, in the state folder.
	tripsFile = "gateway-trips.json"
)

// gradually returns the next form of an Envoy cluster: the previous one if only the order of the gateways differs and
// too many Envoy clusters have changed lately. A change of one round trip concerns all of them.
func (t *reachability) gradually(was, is string) string {
	if !reordered(was, is) {
		return is
	}
	if t.changes < 1 {
		return was
	}
	t.changes--
	return is
}

// measure measures the round trips to the other gateways until ctx ends. They take effect with the next full
// evaluation.
func (t *reachability) measure(ctx context.Context) {
	for ctx.Err() == nil {
		t.trips.Measure(ctx, t.measured())
		_ = retry.Sleep(ctx, tripsInterval)
	}
}

// measured returns the gateways whose round trips count, by name.
func (t *reachability) measured() map[string]model.Endpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]model.Endpoint{}
	if t.forwards.on() {
		for _, g := range t.forwards.others() {
			all[g.Name] = g.Peer
		}
	}
	return all
}

// rank ranks the other gateways by their round trips, and those with similar ones by their zones. The caller holds
// t.mu.
func (t *reachability) rank() {
	zone, ranks := t.forwards.zone(), map[string]int{}
	for _, g := range t.forwards.others() {
		ranks[g.Name] = 2 * t.trips.Class(g.Name)
		if zone == "" || g.Zone != zone {
			ranks[g.Name]++
		}
	}
	t.forwards.prefer(ranks)
}

// ways returns the zone of this gateway, and its ways to the others that stay, the nearest first.
func (t *reachability) ways() (zone string, to []*reportv1.Way) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.forwards.on() {
		return t.forwards.zone(), nil
	}
	for _, g := range t.forwards.others() {
		if g.Leaving {
			continue // it gets no clients if another one can serve them
		}
		to = append(to, &reportv1.Way{
			To: g.Name, Zone: g.Zone, Rank: uint32(t.forwards.ranks[g.Name]),
			RoundTripMicros: uint32(t.trips.Of(g.Name).Microseconds()),
		})
	}
	slices.SortFunc(to, func(a, b *reportv1.Way) int {
		return cmp.Or(cmp.Compare(a.GetRank(), b.GetRank()), strings.Compare(a.GetTo(), b.GetTo()))
	})
	return t.forwards.zone(), to
}
