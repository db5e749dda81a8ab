package gateway

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/outcomes"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

const (
	// knownFile holds the known sources, in the state folder; maxKnownFile exceeds its size.
	knownFile    = "known-sources.json"
	maxKnownFile = 32 << 20
	// excessInterval is the interval at which the table is compared with the limits; excessAtOnce bounds the tunnels
	// closed each time. That is 50 in a second, so that edges that Envoy admitted while it could not query the agent do
	// not all dial again at once.
	excessInterval, excessAtOnce = 2 * time.Second, 100
	// silentFrom is the number of connections without a filter chain from which silent ones are looked up, which takes
	// 2 ms for a thousand sockets. A source may have silentPerSource of them, and more depending on its edges.
	silentFrom, silentPerSource = 256, 64
	// logInterval is the interval at which rejections are logged, one line for each reason.
	logInterval = 10 * time.Second
	// saveInterval is the interval at which changed known sources are saved. Unchanged ones are saved after saveAgain,
	// because a saved source is outdated after a day.
	saveInterval, saveAgain = time.Minute, time.Hour
	// connectionsAtOnce bounds the other connections closed each time, which are not admitted again. It is as many as an
	// installation with the default rate accepts of all sources in twice that time.
	connectionsAtOnce = 4 * admission.DefaultRate
	// apiserverConnections is a quarter of how many connections per second a gateway expects of an apiserver, whose source
	// is known from its first request on.
	apiserverConnections = 256
	// peerConnections is a quarter of how many connections per second a gateway expects of another one: it opens one for
	// each workload cluster and worker when clients come back after a restart.
	peerConnections = 256
	// lowerAfter is how long an edge may keep its number of tunnels after the limit is lowered.
	lowerAfter = 10 * time.Minute
)

// silentConnections matches the number of connections that Envoy has accepted and that have no filter chain yet.
const silentConnections = `^listener\.public\.downstream_pre_cx_active$`

// admissions decides which connections and tunnels a gateway's Envoy accepts. It implements xdsproxy.Override for the
// public listener, and delegates all other resources to tenants.
type admissions struct {
	tenants *reachability
	config  Config
	deps    Deps
	control *admission.Control
	table   *tunnels.Table
	log     *slog.Logger

	mu       sync.Mutex
	quotas   map[string]quota // by tunnel id, if it differs from that of a workload cluster with one name
	rejected map[admission.Reason]rejections
	closed   struct{ excess, silent, requests uint64 }
	floods   map[string]bool // keys of connections with more requests than their node may make
	lanes    int             // of each edge
	// moreLanes is how many lanes each edge may have for some time, because it was allowed to before.
	moreLanes quota
	relays    []netip.Prefix // networks of the other gateways: see followRelays
	excess    int            // tunnels beyond the limits that were logged last; used only by run
	saved     time.Time      // of the known sources; used only by run
	flooded   chan struct{}  // notifies run of floods
}

// quota is the number of tunnels that an edge of a tunnel id keeps to this gateway, or of its lanes.
type quota struct {
	tunnels int
	until   time.Time // it is not lowered before this time
}

// rejections counts the rejections that are not logged yet, and holds the first of them.
type rejections struct {
	count  int
	source netip.Addr
	edge   model.EdgeRef
}

func newAdmissions(c Config, deps Deps, t *reachability, table *tunnels.Table) *admissions {
	a := &admissions{
		tenants: t, config: c, deps: deps, control: admission.NewControl(c.MaxEdges, deps.MaxTunnels), table: table,
		log: deps.Log, quotas: map[string]quota{}, rejected: map[admission.Reason]rejections{}, floods: map[string]bool{},
		flooded: make(chan struct{}, 1),
	}
	t.onNames = a.setNames
	if err := a.restore(); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.log.Warn("cannot load known sources", "error", err)
	}
	return a
}

// server returns the server for Envoy's queries.
func (a *admissions) server() *admission.Server {
	return &admission.Server{
		Control: a.control, Domain: a.config.Domain, SourceKey: envoy.AdmissionSource, RelayedKey: envoy.AdmissionRelayed,
		StreamsKey: envoy.AdmissionStreams,
		Counts:     a.table.Counts, Live: a.table.Has, Denied: a.table.Denied, Claim: a.table.Claim,
		Tunnels: a.tunnels, Decided: a.decided,
	}
}

// Form implements xdsproxy.Override.
func (a *admissions) Form(name string) string {
	if name == envoy.PublicListener {
		return envoy.AdmissionForm + a.proxyProtocol().Form()
	}
	if _, ok := envoy.PeerOf(name); ok {
		return a.config.ProxyProtocol.Form() // constant, as relayed connections end when it changes
	}
	if envoy.HasClients(name) {
		return outcomes.Form
	}
	return a.tenants.Form(name)
}

// Apply implements xdsproxy.Override.
func (a *admissions) Apply(name, form string, resource *anypb.Any) *anypb.Any {
	if _, ok := envoy.PeerOf(name); ok {
		return a.config.ProxyProtocol.Send(resource)
	}
	if envoy.HasClients(name) {
		counted, _ := outcomes.Count(resource)
		return counted
	}
	if name != envoy.PublicListener {
		return a.tenants.Apply(name, form, resource)
	}
	with, _ := envoy.AddAdmission(resource)
	return a.proxyProtocol().Accept(with)
}

// follow takes the limits of a public listener as the xds-server sent it. An agent that adopts its Envoy applies
// nothing to the listener that this one already has, so it is called for each listener that is loaded or received.
func (a *admissions) follow(rate, lanes int) {
	a.control.SetRate(rate)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); lanes < a.lanes { // edges close theirs when their own configuration follows
		a.moreLanes = quota{a.lanesAt(now), now.Add(lowerAfter)}
	}
	a.lanes = lanes
}

// lanesAt returns how many lanes each edge may have at a time. The caller holds the lock.
func (a *admissions) lanesAt(now time.Time) int {
	if now.After(a.moreLanes.until) {
		return a.lanes
	}
	return max(a.lanes, a.moreLanes.tunnels)
}

// setNames updates the number of names of each tunnel id.
func (a *admissions) setNames(names map[string]int) {
	now, usual := time.Now(), model.TunnelsPerEdge(a.deps.Workers, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, n := range names {
		id, ok := a.config.Domain.ParseTunnelID(name)
		if !ok {
			continue
		}
		each := model.TunnelsPerEdge(a.deps.Workers, n)
		if each > usual && each >= a.quotas[id].tunnels {
			a.quotas[id] = quota{each, now.Add(lowerAfter)}
		}
	}
	for id, q := range a.quotas {
		if now.After(q.until) {
			delete(a.quotas, id) // the next call adds the present value
		}
	}
}

// tunnels returns the number of tunnels that an edge of a tunnel id keeps to this gateway, with those of its lanes.
func (a *admissions) tunnels(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	usual := max(a.quotas[id].tunnels, model.TunnelsPerEdge(a.deps.Workers, 1))
	return usual + model.TunnelsInLanes(a.lanesAt(time.Now()))*max(a.deps.Workers, 1)
}

// decided counts a rejection, which is logged later: with a line for each, a source could fill the disk.
func (a *admissions) decided(reason admission.Reason, source netip.Addr, edge model.EdgeRef) {
	if reason == admission.Admitted {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.rejected[reason]
	if r.count == 0 {
		r.source, r.edge = source, edge
	}
	r.count++
	a.rejected[reason] = r
}

// run enforces the limits that Envoy's queries do not cover until ctx ends.
func (a *admissions) run(ctx context.Context) {
	excess, report, save := time.NewTicker(excessInterval), time.NewTicker(logInterval), time.NewTicker(saveInterval)
	defer excess.Stop()
	defer report.Stop()
	defer save.Stop()
	for {
		select {
		case <-ctx.Done():
			a.save(true)
			return
		case <-a.flooded:
			a.closeFloods()
		case <-excess.C:
			a.closeExcess()
			a.closeSilent(ctx)
		case <-report.C:
			a.logRejections()
			a.control.Expire(time.Now())
		case <-save.C:
			a.save(false)
		}
	}
}

// requested counts a request of an apiserver or an edge. Its connection is closed if its node makes too many.
func (a *admissions) requested(r tunnels.Placed) {
	node := model.EdgeRef{Node: r.Node, ID: r.ID}
	reason := a.control.Request(r.Since, node)
	if reason == admission.Admitted {
		return
	}
	a.decided(reason, r.From, node)
	a.mu.Lock()
	a.floods[r.Key] = true
	a.mu.Unlock()
	select {
	case a.flooded <- struct{}{}:
	default:
	}
}

// closeFloods closes the connections on which nodes have made too many requests. Without NET_ADMIN they stay open.
func (a *admissions) closeFloods() {
	a.mu.Lock()
	keys := slices.Collect(maps.Keys(a.floods))
	clear(a.floods)
	a.mu.Unlock()
	if a.config.WithoutNetAdmin {
		return
	}
	closed, err := a.table.Close(keys)
	a.mu.Lock()
	a.closed.requests += uint64(closed)
	a.mu.Unlock()
	if err != nil {
		a.log.Error("cannot close connections with too many requests", "error", err)
	}
}

// tunnelLimits returns the limits of reverse tunnels of a tunnel id.
func (a *admissions) tunnelLimits(id string) admission.Limits {
	return a.control.TunnelLimits(a.tunnels(id))
}

// excessOf returns the keys beyond the limits of a tunnel id, and records the sources of all others as known. The
// weight of a source is the number of connections that one node keeps there.
func (a *admissions) excessOf(
	all []tunnels.Placed, limits func(id string) admission.Limits, weight func(id string) int,
) (keys []string) {
	live, now := make([]admission.Live, 0, len(all)), time.Now()
	for _, t := range all {
		live = append(live, admission.Live{
			Key: t.Key, Edge: model.EdgeRef{Node: t.Node, ID: t.ID}, Worker: t.Worker, Lane: t.Lane, Since: t.Since,
		})
	}
	keys = a.control.Excess(live, limits)
	beyond := make(map[string]bool, len(keys))
	for _, key := range keys {
		beyond[key] = true
	}
	for _, t := range all {
		if !beyond[t.Key] && t.Owner != record.OwnerForward {
			a.control.Note(now, t.From, model.EdgeRef{Node: t.Node, ID: t.ID}, weight(t.ID))
		}
	}
	return keys
}

// excessConnections returns the keys of connections beyond the limits that are no tunnels. The connections of an edge
// come from the source of its tunnels, which is known already.
func (a *admissions) excessConnections(all []tunnels.Placed) (keys []string) {
	for owner, role := range map[string]model.Role{
		record.OwnerEgress: model.RoleEgress, record.OwnerForward: model.RoleEdge,
	} {
		of := slices.DeleteFunc(slices.Clone(all), func(p tunnels.Placed) bool { return p.Owner != owner })
		keys = append(keys, a.excessOf(
			of, func(string) admission.Limits { return a.control.StreamLimits(role) },
			func(string) int { return apiserverConnections },
		)...)
	}
	return keys
}

// notePeers records the sources of other gateways that forward clients as known. Otherwise they would have the quota of
// an unknown source, and share the capacity of a flood.
func (a *admissions) notePeers(places []tunnels.Placed) {
	now := time.Now()
	for _, p := range places {
		a.control.Note(now, p.From, model.EdgeRef{Node: p.Node}, peerConnections)
	}
}

// closeExcess closes tunnels and connections beyond the limits.
func (a *admissions) closeExcess() {
	a.notePeers(a.table.PeerPlaces())
	keys := a.excessOf(a.table.Places(), a.tunnelLimits, a.tunnels)
	others := a.excessConnections(a.table.ConnectionPlaces())
	excess := len(keys) + len(others)
	if excess == 0 || a.config.WithoutNetAdmin {
		a.logExcess(excess)
		return
	}
	closed, err := a.table.Close(slices.Concat(
		keys[:min(len(keys), excessAtOnce)], others[:min(len(others), connectionsAtOnce)],
	))
	a.mu.Lock()
	a.closed.excess += uint64(closed)
	a.mu.Unlock()
	a.log.Warn(
		"closed tunnels or connections beyond the limit of their node, tunnel id or gateway", "closed", closed,
		"excess", excess,
	)
	if err != nil {
		a.log.Error("cannot close tunnels beyond the limit", "error", err)
	}
}

// logExcess logs the number of tunnels beyond the limits, which only the gateway's next Envoy closes, if it has grown.
func (a *admissions) logExcess(n int) {
	if n > a.excess {
		a.log.Warn(
			"tunnels or connections are beyond the limit of their node, tunnel id or gateway: without NET_ADMIN they stay open",
			"excess", n,
		)
	}
	a.excess = n
}

// closeSilent closes connections of sources that have many without data: Envoy queries the agent only after the
// ClientHello, and waits for that for some seconds. Without NET_ADMIN only Envoy closes them, after that time.
func (a *admissions) closeSilent(ctx context.Context) {
	if a.config.WithoutNetAdmin {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, excessInterval)
	defer cancel()
	waiting, err := a.deps.Admin.Sum(ctx, silentConnections)
	if err != nil || waiting < silentFrom {
		return // Envoy may have ended
	}
	closed, err := sockets.CloseSilent(a.config.Bind.Edges(), a.silentSource, a.maxSilent)
	if err != nil {
		a.log.Error("cannot close silent connections", "error", err)
	}
	if closed > 0 {
		a.mu.Lock()
		a.closed.silent += uint64(closed)
		a.mu.Unlock()
		a.log.Warn("closed silent connections beyond the limit of their source", "closed", closed)
	}
}

// silentSource returns the source of a silent connection, by the address of its socket. A load balancer or gateway that
// sends PROXY headers is a source of its own, also in a /64 with others.
func (a *admissions) silentSource(from netip.Addr) netip.Prefix {
	if a.proxyProtocol().Trusts(from) {
		return netip.PrefixFrom(from, from.BitLen())
	}
	return admission.Source(from)
}

// maxSilent returns how many silent connections a source may have. A load balancer has the ones of all its clients.
func (a *admissions) maxSilent(source netip.Prefix) int {
	if source.IsSingleIP() && a.proxyProtocol().Trusts(source.Addr()) {
		return math.MaxInt
	}
	return silentPerSource + a.control.Weight(time.Now(), source)
}

// logRejections logs the rejections since the previous call, one line for each reason.
func (a *admissions) logRejections() {
	a.mu.Lock()
	rejected := a.rejected
	a.rejected = map[admission.Reason]rejections{}
	a.mu.Unlock()
	for _, reason := range admission.Reasons {
		if r := rejected[reason]; r.count > 0 {
			a.log.Warn("connections or tunnels are rejected", "reason", string(reason), "count", r.count,
				"first_source", r.source.String(), "first_node", r.edge.Node, "first_tunnel", r.edge.ID)
		}
	}
}

func (a *admissions) knownPath() string { return filepath.Join(a.deps.StateDir, knownFile) }

// save saves the known sources if they have changed or were last saved long ago, or always.
func (a *admissions) save(always bool) {
	data, changed, err := a.control.Save()
	if err == nil && (changed || always || time.Since(a.saved) >= saveAgain) {
		if err = disk.Replace(a.knownPath(), data); err == nil {
			a.saved = time.Now()
		} else {
			a.control.Unsaved()
		}
	}
	if err != nil {
		a.log.Warn("cannot save known sources", "error", err)
	}
}

func (a *admissions) restore() error {
	info, err := os.Stat(a.knownPath())
	if err != nil {
		return err
	}
	if info.Size() > maxKnownFile {
		return errors.New("the file of known sources is too large")
	}
	data, err := os.ReadFile(a.knownPath())
	if err != nil {
		return err
	}
	return a.control.Restore(time.Now(), data)
}

// collect emits the number of decisions.
func (a *admissions) collect(emit metrics.Emit) {
	counts := a.control.Counts()
	for what, by := range map[string]map[admission.Reason]uint64{
		"connection": counts.Connections,
		"tunnel":     counts.Tunnels,
	} {
		emit("fairlead_gateway_admitted_total", float64(by[admission.Admitted]), what)
	}
	for _, reason := range admission.Reasons {
		emit("fairlead_gateway_refused_total", float64(counts.Connections[reason]+counts.Tunnels[reason]), string(reason))
	}
	emit("fairlead_gateway_known_sources", float64(a.control.Known()))
	a.mu.Lock()
	defer a.mu.Unlock()
	emit("fairlead_gateway_closed_total", float64(a.closed.excess), "excess")
	emit("fairlead_gateway_closed_total", float64(a.closed.silent), "silent")
	emit("fairlead_gateway_closed_total", float64(a.closed.requests), "requests")
}
