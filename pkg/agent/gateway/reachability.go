package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/trips"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

const (
	// unreachableAfter is how long a workload cluster must have had no tunnel before it is unreachable and its clients
	// are rejected immediately. An edge that dials again takes about a second, and clients wait for that.
	unreachableAfter = 10 * time.Second
	// unreachableGrace is the time after the start of the agent, and after the end of all tunnels, in which no cluster
	// is unreachable: the edges of a whole fleet take that long to reconnect.
	unreachableGrace = time.Minute
	// reachabilityInterval is the interval between full evaluations. Changed tunnels are processed immediately, except in
	// the pause after the previous ones.
	reachabilityInterval = time.Second
	// restFactor is the ratio of that pause, which is at most reachabilityInterval, to the duration of the evaluation. One
	// of 100,000 names takes 0.4 s, in which Envoy waits for resources. While the edges of a fleet return, tunnels change
	// all the time, and their handshakes need the core.
	restFactor = 4
	// othersInterval is the interval at which the tunnels of other gateways are queried, while a workload cluster has
	// none here. If more than maxOthers tunnel ids have none, the tunnels of all are queried, every allOthersInterval.
	othersInterval, allOthersInterval = 5 * time.Second, 20 * time.Second
	maxOthers                         = 1000
	// maxOverrides bounds the limits that are set with one request, and maxOverrideBytes what they add to its header.
	// Envoy rejects a header above 60 KiB, and the name in a limit may have 253 bytes.
	maxOverrides     = 256
	maxOverrideBytes = 16 << 10
	// unreachableForm is the form of an Envoy cluster of an unreachable workload cluster.
	unreachableForm = "dark"
)

// reachability holds the state of each workload cluster that a gateway's Envoy serves: whether it has a tunnel here,
// and its limits. Both change Envoy's behaviour without an xds-server. Clients of a workload cluster without a tunnel
// are forwarded to another gateway. If none has a tunnel for some time, it is unreachable. Limits are set in Envoy's
// runtime, where they affect nothing else. It implements xdsproxy.Override.
type reachability struct {
	xds   *xdsproxy.Proxy
	table *tunnels.Table
	admin envoyadmin.Client
	log   *slog.Logger
	// onNames is called at each full evaluation with the number of names of each tunnel id; nil: not called.
	onNames func(names map[string]int)
	outages *outages
	trips   *trips.Meter // to the other gateways

	mu       sync.Mutex
	forms    map[string]string // the forms that are not the usual one, by name of the Envoy cluster
	dark     int               // number of unreachable ones
	forwards forwarding
	others   map[string]other  // gateways by name, as last reported by the xds-servers
	asked    time.Time         // when the query began whose answer had all gateways that live
	ids      map[string]string // id by name of the Envoy cluster, of unreachable ones
	names    int               // number of Envoy clusters of workload clusters

	// absent is since when an id that is assigned to this gateway has no tunnel here. It is replaced, and never changed.
	absent map[string]time.Time

	// The fields below are used only by run's goroutine.
	began  time.Time              // beginning of unreachableGrace
	known  map[string]clusterName // by name
	counts map[string]int         // number of tunnels, by id
	keys   map[string]string      // id of each tunnel of the table
	limits map[string]string      // set in Envoy; nil: not known
	failed retry.Reasons          // of limit, that were logged
	// changes is how many Envoy clusters may begin to forward now although tunnels may be about to open, and counted is
	// when that was determined: see forwardChanges.
	changes float64
	counted time.Time
}

// other is another gateway.
type other struct {
	asked time.Time       // when the query began whose answer had all of its tunnels; zero: none is known
	ids   map[string]bool // of those that are absent here, the ones that have a tunnel there
}

// clusterName is one name of a workload cluster.
type clusterName struct {
	version string
	id      string
	limits  map[string]string
}

func newReachability(
	r *xdsproxy.Proxy, table *tunnels.Table, a envoyadmin.Client, meter *trips.Meter, log *slog.Logger,
) *reachability {
	return &reachability{
		xds: r, table: table, admin: a, log: log, trips: meter, began: time.Now(), forms: map[string]string{},
		known: map[string]clusterName{}, outages: newOutages(), ids: map[string]string{},
		keys: map[string]string{}, counts: map[string]int{}, absent: map[string]time.Time{},
	}
}

// Form implements xdsproxy.Override.
func (t *reachability) Form(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.forms[name]
}

// Apply implements xdsproxy.Override.
func (*reachability) Apply(name, form string, resource *anypb.Any) *anypb.Any {
	if form == unreachableForm {
		return envoy.UnreachableCluster(name)
	}
	if forwarding, ok := applyForward(form, resource); ok {
		return forwarding
	}
	return envoy.Plain(resource)
}

// restore decides, before Envoy is served and the tunnels are known, what depends on the configuration alone, with the
// one that an earlier agent has left: a running Envoy keeps forwarding. It must be called before run.
func (t *reachability) restore() {
	t.readNames()
	t.restoreForms()
}

func (t *reachability) restoreForms() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, tenant := range t.known {
		if r := t.forwards.route(tenant.id); !r.assigned {
			t.forms[name] = r.form
		}
	}
}

// run keeps Envoy up to date until ctx ends.
func (t *reachability) run(ctx context.Context, domain model.TunnelDomain) {
	version, all, rest := uint64(0), time.Time{}, time.Duration(0)
	for {
		before := version
		version = t.follow(ctx, domain, version, rest)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		whole := now.Sub(all) >= reachabilityInterval
		if whole {
			all = now
			t.readNames()
		}
		if version > 0 {
			// If there may be tunnels that are not in the table, no cluster is unreachable.
			t.decide(now, t.table.Stats().Unknown == 0)
		}
		rest = 0
		if version != before {
			rest = min(reachabilityInterval, restFactor*time.Since(now))
		}
		if !whole {
			continue
		}
		if err := t.limit(ctx); err != nil && ctx.Err() == nil {
			level := slog.LevelDebug // Envoy starts or hangs, which is reported elsewhere
			if errors.Is(err, envoyadmin.ErrStatus) && t.failed.New(err) {
				level = slog.LevelWarn
			}
			t.log.Log(ctx, level, "cannot set limits, retrying", "error", err)
		}
	}
}

// follow rests, waits for changes of tunnels, at most until the next full evaluation, and counts the tunnels.
func (t *reachability) follow(
	ctx context.Context, domain model.TunnelDomain, seen uint64, rest time.Duration,
) uint64 {
	wait, cancel := context.WithTimeout(ctx, reachabilityInterval)
	defer cancel()
	_ = retry.Sleep(wait, rest)
	opened, closed, version, ok := t.table.Changes(wait, seen)
	if !ok { // at the first call, and after more changes than the table keeps
		opened, version = t.table.Snapshot()
		closed = t.absentFrom(opened)
	}
	t.count(domain, opened, closed)
	return version
}

// count counts tunnels that opened and closed. After the end of all, a new grace begins, even if others open meanwhile.
func (t *reachability) count(domain model.TunnelDomain, opened []tunnels.Tunnel, closed []string) {
	some := len(t.counts) > 0
	for _, key := range closed {
		t.forget(key)
	}
	if some && len(t.counts) == 0 {
		t.began = time.Now()
	}
	for _, tunnel := range opened {
		t.forget(tunnel.Key)
		id := domain.TunnelID(tunnel.ID)
		t.keys[tunnel.Key] = id
		t.counts[id]++
	}
}

// absentFrom returns the keys of counted tunnels that are not among these.
func (t *reachability) absentFrom(open []tunnels.Tunnel) (closed []string) {
	present := make(map[string]bool, len(open))
	for _, tunnel := range open {
		present[tunnel.Key] = true
	}
	for key := range t.keys {
		if !present[key] {
			closed = append(closed, key)
		}
	}
	return closed
}

func (t *reachability) forget(key string) {
	id, had := t.keys[key]
	if !had {
		return
	}
	delete(t.keys, key)
	if t.counts[id]--; t.counts[id] == 0 {
		delete(t.counts, id)
	}
}

// readNames reads the names of the workload clusters.
func (t *reachability) readNames() {
	known := make(map[string]clusterName, len(t.known))
	var others fleet
	t.xds.Clusters(func(name, version string, resource *anypb.Any) {
		if before, ok := t.known[name]; ok && before.version == version {
			known[name] = before
			return
		}
		if tunnel, ok := envoy.TunnelOf(resource); ok {
			known[name] = clusterName{version: version, id: tunnel.ID, limits: tunnel.Limits}
		} else if g, perTunnel, _, ok := peers.Described(resource); ok {
			others.gateways, others.perTunnel = append(others.gateways, g), perTunnel
		}
	})
	t.known = known
	t.mu.Lock()
	t.forwards.set(others)
	t.rank()
	t.forwards.prune(len(known))
	t.mu.Unlock()
	if t.onNames == nil {
		return
	}
	names := make(map[string]int, len(known))
	for _, k := range known {
		names[k.id]++
	}
	t.onNames(names)
}

// decide decides which workload clusters are forwarded or unreachable, and updates Envoy. If sure is false, none is
// unreachable.
//
// A workload cluster that may be forwarded is unreachable only if each gateway that may have its tunnels has none
// either, unreachableAfter later, or does not live: an older answer, or none, is no reason to reject clients that it
// can serve.
func (t *reachability) decide(now time.Time, sure bool) {
	absent := make(map[string]time.Time, len(t.absent))
	forms, ids, served := map[string]string{}, map[string]string{}, make(map[string]bool, len(t.known))
	settled := now.Sub(t.began) >= unreachableGrace
	t.changes = min(forwardChanges, t.changes+forwardChanges*now.Sub(t.counted).Seconds())
	t.counted = now
	t.mu.Lock()
	for name, tenant := range t.known {
		if t.counts[tenant.id] > 0 {
			served[tenant.id] = true
			continue
		}
		if !t.forwards.route(tenant.id).assigned {
			// A gateway with its tunnels rejects its clients when it is unreachable.
			forms[name] = t.gradually(t.forms[name], t.forwards.form(tenant.id, 0, sure))
			continue
		}
		served[tenant.id] = false
		since, ok := t.absent[tenant.id]
		if !ok {
			since = now
		}
		absent[tenant.id] = since
		form := t.forwards.form(tenant.id, now.Sub(since), sure)
		switch {
		case sure && now.Sub(since) >= unreachableAfter && settled && t.nowhere(tenant.id, form, since):
			forms[name], ids[name] = unreachableForm, tenant.id
		case form == "":
		case settled || t.forms[name] == form:
			forms[name] = t.gradually(t.forms[name], form)
		case t.changes >= 1:
			t.changes--
			forms[name] = form
		}
	}
	t.outages.update(now, served, sure)
	var changed []string
	for name, form := range forms {
		if t.forms[name] != form {
			changed = append(changed, name)
		}
	}
	for name := range t.forms {
		if forms[name] == "" {
			changed = append(changed, name)
		}
	}
	t.absent, t.forms, t.dark, t.ids, t.names = absent, forms, len(ids), ids, len(t.known)
	t.mu.Unlock()
	if len(changed) > 0 {
		t.log.Debug(
			"workload clusters are unreachable or forwarded", "dark", len(ids), "forwarded", len(forms)-len(ids), "changed",
			len(changed),
		)
		t.xds.Reapply(changed)
	}
}

// nowhere returns whether no other gateway has a tunnel of an id that has been absent here since then, and each of
// those to which its clients are forwarded has been asked about that, unless it does not live. The caller holds t.mu.
func (t *reachability) nowhere(id, form string, since time.Time) bool {
	for _, other := range t.others {
		if other.ids[id] {
			return false
		}
	}
	confirmed := since.Add(unreachableAfter)
	if !t.asked.Before(confirmed) {
		return true
	}
	groups, _ := groupsOf(form)
	return !slices.ContainsFunc(slices.Concat(groups...), func(gateway string) bool {
		return t.others[gateway].asked.Before(confirmed)
	})
}

// askOthers updates the tunnels of the other gateways until ctx ends: a client that this gateway rejects can use
// another gateway with a tunnel, if there is one. The last report of a gateway that does not report now is kept, unless
// the answer is known to have all gateways that live.
func (t *reachability) askOthers(
	ctx context.Context, domain model.TunnelDomain,
	ask func(ctx context.Context, ids []string) (reportagent.Peers, error),
) {
	for ctx.Err() == nil {
		t.mu.Lock()
		absent := t.absent
		t.mu.Unlock()
		wait := othersInterval
		if len(absent) > 0 {
			ids, begin := queried(absent, domain), time.Now()
			if ids == nil {
				wait = allOthersInterval
			}
			peers, err := ask(ctx, ids)
			t.note(domain, peers, begin, err == nil && peers.Known)
		}
		_ = retry.Sleep(ctx, wait)
	}
}

// queried returns the ids (Tunnel.spec.id) that are queried; nil: all.
func queried(absent map[string]time.Time, domain model.TunnelDomain) (ids []string) {
	if len(absent) > maxOthers {
		return nil
	}
	for tunnelID := range absent {
		if id, ok := domain.ParseTunnelID(tunnelID); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// note records the answer to a query that began at asked. all is whether it has all gateways that live.
func (t *reachability) note(domain model.TunnelDomain, peers reportagent.Peers, asked time.Time, all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	others := make(map[string]other, len(peers.Gateways))
	if all {
		t.asked = asked
	} else {
		maps.Copy(others, t.others)
	}
	for name, peer := range peers.Gateways {
		now := other{asked: asked, ids: make(map[string]bool, len(peer.Edges))}
		if peer.Incomplete {
			now.asked = time.Time{}
		}
		for e := range peer.Edges {
			now.ids[domain.TunnelID(e.ID)] = true
		}
		others[name] = now
	}
	t.others = others
}

// limit sets the limits that differ from the default in Envoy's runtime, and removes the others. Envoy loses them when
// it ends. A request that Envoy rejects does not prevent the others.
func (t *reachability) limit(ctx context.Context) error {
	want := map[string]string{}
	for _, tenant := range t.known {
		maps.Copy(want, tenant.limits)
	}
	if t.limits == nil { // an earlier agent may have set some
		before, err := t.admin.Overrides(ctx)
		if err != nil {
			return err
		}
		maps.DeleteFunc(before, func(key, _ string) bool { return !envoy.IsLimit(key) })
		t.limits = before
	}
	if len(t.limits) > 0 {
		active, err := t.admin.Sum(ctx, `^runtime\.admin_overrides_active$`)
		if err != nil {
			return err
		}
		if active == 0 {
			t.limits = map[string]string{} // another Envoy has started
		}
	}
	var first error
	rejected := 0
	for _, part := range overrides(t.limits, want) {
		err := t.admin.Post(ctx, "/runtime_modify?"+part.query)
		switch {
		case errors.Is(err, envoyadmin.ErrStatus):
			if rejected++; first == nil {
				first = err
			}
			continue
		case err != nil: // Envoy does not answer
			return fmt.Errorf("setting limits: %w", err)
		}
		for _, key := range part.keys {
			if value, ok := want[key]; ok {
				t.limits[key] = value
			} else {
				delete(t.limits, key)
			}
		}
	}
	if first != nil {
		return fmt.Errorf("setting limits: Envoy has rejected %d requests, of which the first: %w", rejected, first)
	}
	return nil
}

// override is a request that sets some limits.
type override struct {
	keys  []string
	query string
}

// overrides returns the requests by which the limits that are set become those that are wanted.
func overrides(set, want map[string]string) (parts []override) {
	var changes []string
	for key, value := range want {
		if set[key] != value {
			changes = append(changes, key)
		}
	}
	for key := range set {
		if _, still := want[key]; !still {
			changes = append(changes, key)
		}
	}
	slices.Sort(changes)
	var part override
	for _, key := range changes {
		one := url.QueryEscape(key) + "=" + url.QueryEscape(want[key]) // an empty value removes the override
		if len(part.keys) == maxOverrides || len(part.keys) > 0 && len(part.query)+1+len(one) > maxOverrideBytes {
			parts, part = append(parts, part), override{}
		}
		if len(part.keys) > 0 {
			part.query += "&"
		}
		part.keys, part.query = append(part.keys, key), part.query+one
	}
	if len(part.keys) > 0 {
		parts = append(parts, part)
	}
	return parts
}

// reject counts a rejected client of a name.
func (t *reachability) reject(name string) {
	t.mu.Lock()
	id := t.ids[name]
	t.mu.Unlock()
	t.outages.reject(id, time.Now())
}

// assigned reports whether a tunnel id (Tunnel.spec.id) is assigned to this gateway.
func (t *reachability) assigned(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.forwards.route(t.forwards.domain.TunnelID(id)).assigned
}

// sizes returns the number of names, and how many of them are unreachable.
func (t *reachability) sizes() (names, unreachable int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names, t.dark
}
