package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

const (
	// darkAfter is for how long a workload cluster has to be without a tunnel before clients are told so at once: an edge that only
	// dials again takes about a second, and for that clients are made to wait.
	darkAfter = 10 * time.Second
	// darkGrace is the time after the start of the agent, and after the end of all tunnels, in which nothing is dark: edges of a whole
	// fleet take so long to come back.
	darkGrace = time.Minute
	// tenantsInterval is how often all is looked at; tunnels that open are seen at once.
	tenantsInterval = time.Second
	// othersInterval is how often the other gateways' tunnels are asked for, while somebody has none here.
	othersInterval = 20 * time.Second
	// maxOverrides is how many limits Envoy is told of in one request.
	maxOverrides = 256
	// darkForm is the form of an Envoy cluster without a tunnel.
	darkForm = "dark"
)

// tenants is what a gateway's agent knows of each workload cluster that its Envoy serves: whether it has a tunnel here, and its limits. Both
// change how Envoy treats it without an xds-server: who has no tunnel for a while is dark, and limits are set in
// Envoy's runtime, where they change nothing else. It implements xdsproxy.Override.
type tenants struct {
	xds   *xdsproxy.Proxy
	table *tunnels.Table
	admin envoyadmin.Client
	log   *slog.Logger
	// learned is called with how many names each tunnel id has whenever all is looked at; nil: nothing is.
	learned func(names map[string]int)

	mu       sync.Mutex
	dark     map[string]bool // by name of the Envoy cluster
	others   map[string]bool // ids that have a tunnel to another gateway, as far as the xds-servers said last
	absences int             // how many ids have no tunnel here
	names    int             // how many Envoy clusters of workload clusters there are

	// Of run's goroutine alone.
	began  time.Time            // of darkGrace
	known  map[string]tenant    // by name
	counts map[string]int       // tunnels by id
	keys   map[string]string    // the id of each tunnel of the table
	absent map[string]time.Time // since when an id has none
	limits map[string]string    // that Envoy was told
}

// tenant is one name of a workload cluster.
type tenant struct {
	version string
	id      string
	limits  map[string]string
}

func newTenants(r *xdsproxy.Proxy, table *tunnels.Table, a envoyadmin.Client, log *slog.Logger) *tenants {
	return &tenants{
		xds: r, table: table, admin: a, log: log, began: time.Now(), dark: map[string]bool{}, known: map[string]tenant{},
		keys: map[string]string{}, counts: map[string]int{}, absent: map[string]time.Time{}, limits: map[string]string{},
	}
}

// Form implements xdsproxy.Override.
func (t *tenants) Form(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dark[name] {
		return darkForm
	}
	return ""
}

// Apply implements xdsproxy.Override.
func (*tenants) Apply(name, form string, resource *anypb.Any) *anypb.Any {
	if form == darkForm {
		return envoy.DarkCluster(name)
	}
	if tunnel, ok := envoy.TunnelOf(resource); ok {
		return tunnel.Plain
	}
	return resource
}

// run keeps Envoy at what is known until ctx ends.
func (t *tenants) run(ctx context.Context, domain model.TunnelDomain) {
	version, all := uint64(0), time.Time{}
	for {
		version = t.follow(ctx, domain, version)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		whole := now.Sub(all) >= tenantsInterval
		if whole {
			all = now
			t.learn()
		}
		if version > 0 {
			// Who thinks that there are tunnels of which it knows nothing calls nobody dark.
			t.judge(now, t.table.Stats().Unknown == 0)
		}
		if !whole {
			continue
		}
		if err := t.limit(ctx); err != nil && ctx.Err() == nil {
			t.log.Debug("cannot set limits, retrying", "error", err)
		}
	}
}

// follow waits for tunnels that open or end, but no longer than until it is time to look at all, and counts them.
func (t *tenants) follow(ctx context.Context, domain model.TunnelDomain, seen uint64) uint64 {
	wait, cancel := context.WithTimeout(ctx, tenantsInterval)
	defer cancel()
	opened, closed, version, ok := t.table.Changes(wait, seen)
	if !ok {
		opened, version = t.table.Snapshot()
		closed = nil
		t.keys, t.counts = map[string]string{}, map[string]int{}
	}
	some := len(t.counts) > 0
	for _, key := range closed {
		t.forget(key)
	}
	for _, tunnel := range opened {
		t.forget(tunnel.Key)
		id := domain.TunnelID(tunnel.ID)
		t.keys[tunnel.Key] = id
		t.counts[id]++
	}
	if some && len(t.counts) == 0 {
		t.began = time.Now()
	}
	return version
}

func (t *tenants) forget(key string) {
	id, had := t.keys[key]
	if !had {
		return
	}
	delete(t.keys, key)
	if t.counts[id]--; t.counts[id] == 0 {
		delete(t.counts, id)
	}
}

// learn looks which names there are.
func (t *tenants) learn() {
	known := make(map[string]tenant, len(t.known))
	t.xds.Clusters(func(name, version string, resource *anypb.Any) {
		if before, ok := t.known[name]; ok && before.version == version {
			known[name] = before
			return
		}
		if tunnel, ok := envoy.TunnelOf(resource); ok {
			known[name] = tenant{version: version, id: tunnel.ID, limits: tunnel.Limits}
		}
	})
	t.known = known
	if t.learned == nil {
		return
	}
	names := make(map[string]int, len(known))
	for _, k := range known {
		names[k.id]++
	}
	t.learned(names)
}

// judge decides who is dark, if it is sure of the tunnels, and has Envoy told.
func (t *tenants) judge(now time.Time, sure bool) {
	absent := make(map[string]time.Time, len(t.absent))
	dark := map[string]bool{}
	t.mu.Lock()
	for name, tenant := range t.known {
		if t.counts[tenant.id] > 0 {
			continue
		}
		since, ok := t.absent[tenant.id]
		if !ok {
			since = now
		}
		absent[tenant.id] = since
		if sure && now.Sub(since) >= darkAfter && now.Sub(t.began) >= darkGrace && !t.others[tenant.id] {
			dark[name] = true
		}
	}
	var changed []string
	for name := range dark {
		if !t.dark[name] {
			changed = append(changed, name)
		}
	}
	for name := range t.dark {
		if !dark[name] {
			changed = append(changed, name)
		}
	}
	t.absent, t.absences, t.dark, t.names = absent, len(absent), dark, len(t.known)
	t.mu.Unlock()
	if len(changed) > 0 {
		t.log.Debug("workload clusters are unreachable", "dark", len(dark), "changed", len(changed))
		t.xds.Reapply(changed)
	}
}

// askOthers keeps what the other gateways have until ctx ends: a client that is refused by this one finds another, where there is one
// with a tunnel. While no xds-server answers it keeps what they said last.
func (t *tenants) askOthers(ctx context.Context, domain model.TunnelDomain, ask func(context.Context) (reportagent.Peers, error)) {
	for ctx.Err() == nil {
		t.mu.Lock()
		absences := t.absences
		t.mu.Unlock()
		if absences > 0 {
			peers, err := ask(ctx)
			if err == nil && peers.Known {
				others := make(map[string]bool, len(peers.Edges))
				for _, e := range peers.Edges {
					others[domain.TunnelID(e.ID)] = true
				}
				t.mu.Lock()
				t.others = others
				t.mu.Unlock()
			}
		}
		_ = retry.Sleep(ctx, othersInterval)
	}
}

// limit sets in Envoy's runtime the limits that are no default, and removes those that are one now. Envoy forgets them when it ends.
func (t *tenants) limit(ctx context.Context) error {
	want := map[string]string{}
	for _, tenant := range t.known {
		maps.Copy(want, tenant.limits)
	}
	if len(t.limits) > 0 {
		active, err := t.admin.Sum(ctx, `^runtime\.admin_overrides_active$`)
		if err != nil {
			return err
		}
		if active == 0 {
			t.limits = map[string]string{} // it is another Envoy
		}
	}
	var changes []string
	for key, value := range want {
		if t.limits[key] != value {
			changes = append(changes, key)
		}
	}
	for key := range t.limits {
		if _, still := want[key]; !still {
			changes = append(changes, key)
		}
	}
	slices.Sort(changes)
	for part := range slices.Chunk(changes, maxOverrides) {
		var query []string
		for _, key := range part {
			query = append(query, url.QueryEscape(key)+"="+want[key]) // nothing removes it
		}
		if err := t.admin.Post(ctx, "/runtime_modify?"+strings.Join(query, "&")); err != nil {
			return fmt.Errorf("setting limits: %w", err)
		}
		for _, key := range part {
			if value, ok := want[key]; ok {
				t.limits[key] = value
			} else {
				delete(t.limits, key)
			}
		}
	}
	return nil
}

// sizes are how many names there are, and how many of them are dark.
func (t *tenants) sizes() (names, dark int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names, len(t.dark)
}
