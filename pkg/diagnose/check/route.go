package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/observed"
)

// gracePeriod is how long a change may be pending before it counts as stuck.
const gracePeriod = 10 * time.Second

// observe queries the xds-servers once. It reports whether they answered.
func (v *visit) observe(ctx context.Context) bool {
	switch {
	case v.observed != nil || v.notObserved != "":
	case v.Servers == nil:
		v.notObserved = "the xds-servers cannot be queried from here"
	default:
		names := v.names(ctx)
		fleet, err := v.Servers.Observe(ctx, v.tunnel.HeldID(), append(slices.Clone(names), peers.SNIListener))
		switch {
		case err != nil:
			v.notObserved = "no xds-server answers: " + text(err)
		case names == nil && !v.tunnel.OfCluster():
			v.notObserved = "the xds-servers have answered too late to name their tunnel domain"
		}
		v.observed, v.listeners = &fleet, fleet.Take(peers.SNIListener)
	}
	return v.notObserved == ""
}

// unheard returns why some xds-servers did not answer; empty: all did, or none was queried. A gateway or an edge that
// does not report to the others may report to one of these.
func (v *visit) unheard() string {
	if v.observed == nil {
		return ""
	}
	var all []string
	for _, err := range v.observed.Silent() {
		all = append(all, text(err))
	}
	return strings.Join(all, "; ")
}

// unseen returns whether a gateway may report to an xds-server that did not answer.
func (v *visit) unseen(g *collect.Gateway) bool { return g.Away() && v.unheard() != "" }

// howToSee is the cure if the xds-servers cannot be queried from here.
func (v *visit) howToSee() string {
	return "run fairlead check as a user that may list Pods and create pods/portforward in " +
		"namespace " + v.installation() + ", or pass the inspection addresses of the xds-servers with --xds-server"
}

// notObservable returns why there is no finding about gateways and edges; nil: there can be one.
func (v *visit) notObservable() *finding {
	var f finding
	switch {
	case v.tunnel == nil:
		f = skipped("the Cluster has no Tunnel")
	case !v.tunnelled():
		f = skipped("this path has no gateway and no edge: it uses a network of your own")
	case !v.served():
		f = skipped("the Tunnel is not served")
	default:
		return nil
	}
	return &f
}

// checkRoute checks whether each gateway's Envoy has received and accepted the Envoy clusters of the Tunnel's names.
func checkRoute(ctx context.Context, v *visit) finding {
	if f := v.notObservable(); f != nil {
		return *f
	}
	if !v.observe(ctx) {
		return unknown(v.notObserved, v.howToSee())
	}
	var all routes
	for i := range v.observed.Gateways {
		g := &v.observed.Gateways[i]
		switch {
		case g.Away():
			all.away = append(all.away, g.Name+since(g.Since, v.now()))
		case g.Connected:
			all.connected = append(all.connected, g.Name)
			all.faults = append(all.faults, v.hangsOf(g)...)
			all.faults = append(all.faults, v.routesOf(g)...)
			if g.Resources != nil {
				all.names = names(g.Resources)
			}
		}
	}
	return v.judgeRoutes(all)
}

// routes describes the routes on the gateways.
type routes struct {
	names           []string // of the routes
	connected, away []string // gateways that report, or do not
	faults          []finding
}

// judgeRoutes returns the finding for the routes on all gateways.
func (v *visit) judgeRoutes(r routes) finding {
	var worst finding
	for _, f := range r.faults {
		if severity[f.status] > severity[worst.status] {
			worst = f
		}
	}
	if worst.status == Broken {
		return worst
	}
	cure := "check that the gateway-agent runs and reaches an xds-server: kubectl " +
		"-n " + v.installation() + " logs gateway-<i> reports the reason"
	away, current := strings.Join(r.away, ", "), strings.Join(r.connected, ", ")
	switch {
	case len(v.observed.Gateways) == 0:
		return broken(
			"no gateway is known to the xds-servers", "the StatefulSet gateway does not exist, or has no replicas",
			"kubectl -n "+v.installation()+" scale statefulset gateway --replicas=2",
		)
	case worst.status == Warning:
		return worst
	case len(r.away) > 0 && v.unheard() != "":
		detail := away + " may report to an xds-server that does not answer (" + v.unheard() + ")"
		if current != "" {
			detail += "; " + current + " is up to date"
		}
		return unknown(detail, "see the hop servers")
	case len(r.connected) == 0:
		return broken(
			"no gateway reports to an xds-server: "+away,
			"the gateways are down, or their gateway-agents do not reach an xds-server: their configuration is old", cure,
		)
	case len(r.away) > 0:
		return warning(
			away+": the gateway-agent does not report to an xds-server; "+current+" is up to date",
			"that gateway is down, or its gateway-agent is down or frozen: its Envoy keeps its last configuration and "+
				"receives no changes, not even revocations",
			cure,
		)
	}
	if worst.status == Unknown {
		return worst
	}
	return ok("%s on %s: accepted", strings.Join(r.names, ", "), current)
}

func names(resources []collect.Resource) (all []string) {
	for _, r := range resources {
		all = append(all, r.Name)
	}
	return all
}

// hangsOf returns the processes of one gateway that do not answer. Each is named here, because the later hops fail too.
func (v *visit) hangsOf(g *collect.Gateway) []finding {
	restart := "kubectl -n " + v.installation() + " delete pod " + g.Name
	switch {
	case g.Connected && g.Problem != "":
		return []finding{warning(
			"the gateway-agent of "+g.Name+" does not answer: "+g.Problem,
			"the process gateway-agent of "+g.Name+" is frozen or overloaded: its Envoy keeps its last configuration and "+
				"receives no revocations",
			"wait until its liveness probe restarts it, or restart it: "+restart,
		)}
	case g.Hang == "":
		return nil
	}
	detail := "the Envoy of " + g.Name + " hangs: no answer from " + g.Hang
	cause := "the process envoy of " + g.Name + " is frozen, deadlocked or starved of CPU: the connections of its " +
		"clients hang"
	cure := "wait: its agent replaces a frozen Envoy after 15 s, at most once in five minutes; if it remains " +
		"frozen, " + restart
	for i := range v.observed.Gateways {
		if other := &v.observed.Gateways[i]; other.Serves() || v.unseen(other) {
			return []finding{warning(detail, cause, cure)}
		}
	}
	return []finding{broken(detail+"; no other gateway accepts clients", cause, cure)}
}

// routesOf returns the faults of one gateway's routes.
func (v *visit) routesOf(g *collect.Gateway) (faults []finding) {
	if g.Resources == nil {
		return v.withoutRoutes(g)
	}
	for _, r := range g.Resources {
		what := fmt.Sprintf("%s on %s", r.Name, g.Name)
		switch r.Status {
		case collect.Rejected:
			faults = append(faults, broken(
				fmt.Sprintf("%s: NACK%s: %s", what, since(r.Since, v.now()), r.Refusal),
				"Envoy, or its gateway-agent, rejects the configuration from the xds-server and keeps the previous one: the "+
					"xds-server is newer than the agent, or has a fault",
				"run xds-servers and gateways of the same version (kubectl -n "+v.installation()+" rollout undo "+
					"deployment/xds-server reverts the last upgrade)",
			))
		case collect.Missing:
			faults = append(
				faults,
				broken(
					what+": not sent to the gateway",
					"the xds-server has not read the Tunnel yet, or rejects it",
					"wait a few seconds; then see the log of the xds-server: kubectl "+
						"-n "+v.installation()+" logs deployment/xds-server",
				),
			)
		case collect.Stale:
			if r.Since.IsZero() || v.now().Sub(r.Since) > gracePeriod {
				faults = append(
					faults,
					warning(
						what+": sent, but not answered"+since(r.Since, v.now()), "the gateway's Envoy hangs, or is starting",
						"see the log of the gateway: kubectl -n "+v.installation()+" logs "+g.Name,
					),
				)
			}
		}
	}
	return faults
}

// withoutRoutes returns the fault of a gateway that reports, and whose routes were not observed.
func (v *visit) withoutRoutes(g *collect.Gateway) []finding {
	for _, s := range v.observed.Servers {
		if s.Name == g.Server && s.Unread != nil {
			return []finding{unknown(
				"what was sent to "+g.Name+" is not known: "+text(s.Unread),
				"run fairlead check again; if it fails again, read the log of that xds-server: kubectl "+
					"-n "+v.installation()+" logs deployment/xds-server",
			)}
		}
	}
	if !g.Since.IsZero() && v.now().Sub(g.Since) <= gracePeriod { // its streams open one after the other
		return []finding{unknown(g.Name+" has no configuration stream yet", "run fairlead check again")}
	}
	return []finding{warning(
		g.Name+" reports to an xds-server, but has no configuration stream",
		"the gateway-agent has no stream for its Envoy's configuration: its Envoy keeps its last configuration and receives "+
			"no changes, not even revocations",
		"wait a few seconds; then see the log of the gateway: kubectl -n "+v.installation()+" logs "+g.Name,
	)}
}

func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", utc(t), now.Sub(t).Round(time.Second))
}

// checkTunnels counts the tunnels on each gateway, and on each worker.
func checkTunnels(ctx context.Context, v *visit) finding {
	if f := v.notObservable(); f != nil {
		return *f
	}
	if !v.observe(ctx) {
		return v.tunnelsOnRecord(v.notObserved)
	}
	return v.judgeTunnels(v.countTunnels())
}

// place is where the tunnels of the Tunnel lead.
func (v *visit) place() string {
	if v.tunnel.OfCluster() {
		return "workload cluster"
	}
	return "network"
}

// tunnelCounts describes the tunnels on the gateways that report, without those of revoked edges.
type tunnelCounts struct {
	total      int
	said       []string // the number of each gateway
	without    []string // gateways that accept clients, have no tunnel, and forward to no other gateway
	holes      []string // edges that have no tunnel on some workers of a gateway
	incomplete []string // gateways that cannot account for every connection
	unseen     bool     // a gateway may report to an xds-server that did not answer
}

// countTunnels counts what the xds-servers reported.
func (v *visit) countTunnels() (c tunnelCounts) {
	for i := range v.observed.Gateways {
		g := &v.observed.Gateways[i]
		c.unseen = c.unseen || v.unseen(g)
		if !g.Connected {
			continue
		}
		n, workers := 0, map[string]bool{}
		for _, t := range v.observed.TunnelsTo(g.Name) {
			if !v.revoked(t.Node) {
				n++
				workers[t.Worker] = true
			}
		}
		c.total += n
		count := fmt.Sprintf("%s: %d", g.Name, n)
		if len(workers) > 1 {
			count += fmt.Sprintf(" on %d workers", len(workers))
		}
		c.said = append(c.said, count)
		// Without its listener it is not known whether a gateway forwards clients.
		if listener, seen := v.listeners[g.Name]; n == 0 && g.Ready && seen && !peers.Forwards(listener) {
			c.without = append(c.without, g.Name)
		}
		if g.Incomplete != "" {
			c.incomplete = append(c.incomplete, "the connection record of "+g.Name+" is incomplete: "+g.Incomplete)
		}
		for _, h := range v.observed.Unserved {
			if h.Gateway == g.Name && h.Workers > 0 && !v.revoked(h.Node) {
				c.holes = append(c.holes, fmt.Sprintf("%s has no tunnel on %d of the workers of %s", h.Node, h.Workers, g.Name))
			}
		}
	}
	return c
}

// judgeTunnels returns the finding for the counted tunnels. It records whether the workload cluster is cut off.
func (v *visit) judgeTunnels(c tunnelCounts) finding {
	detail := strings.Join(c.said, "; ")
	switch {
	case c.total == 0 && c.unseen && len(c.without) == 0:
		return v.tunnelsOnRecord(v.unheard())
	case len(c.said) == 0:
		return unknown("no gateway reports to an xds-server", "see the hop route")
	case c.total == 0 && (!c.unseen || len(v.recorded()) == 0):
		v.cutOff = true
		cause, cure := v.away()
		return broken("no gateway has a tunnel to this "+v.place()+" ("+detail+")", cause, cure)
	case len(c.without) > 0:
		return broken(
			detail+": no tunnel on "+strings.Join(c.without, ", "),
			"the edges reach other gateways but not this one: it has just started, or the gateways do not reach each other on "+
				"their public port (a gateway forwards connections that are for another)",
			"wait a few seconds; then check that gateways reach each other: the Service gateway-peers in "+
				"namespace "+v.installation()+", and NetworkPolicies",
		)
	case len(c.holes) > 0:
		return warning(
			detail+"; "+strings.Join(c.holes, "; "),
			"tunnels were lost, and their replacements are on other workers: clients that arrive at a worker without a tunnel "+
				"wait, or fail",
			"wait: the gateway-agent repairs it within seconds; if it persists, edges dial fewer tunnels than there are "+
				"workers: set --gateway-workers of the xds-servers to the value of --workers of the gateways",
		)
	}
	if len(c.incomplete) > 0 {
		return warning(
			detail+"; "+strings.Join(c.incomplete, "; "),
			"a gateway cannot account for every connection to its public port: it may have unreported tunnels, and "+
				"revocations are not proven there",
			"see the runbook FairleadTunnelsNotCounted and the log of the gateway: kubectl -n "+v.installation()+" logs GATEWAY",
		)
	}
	return ok("%s%s", detail, v.roundTrip())
}

// roundTrip returns the longest round-trip time of all tunnels.
func (v *visit) roundTrip() string {
	var longest time.Duration
	for _, t := range v.observed.Tunnels {
		longest = max(longest, t.RTT)
	}
	if longest == 0 {
		return ""
	}
	return "; round trip " + longest.Round(100*time.Microsecond).String()
}

// revoked returns whether an edge is revoked, on record or not.
func (v *visit) revoked(node string) bool { return observed.IsRevoked(v.tunnel, node) }

// away explains the lack of tunnels with what is known of the edges.
func (v *visit) away() (cause, cure string) {
	var known []string
	for _, e := range observed.Recorded(v.tunnel, v.now()) {
		if e.Revoked() {
			continue
		}
		one := nameOf(&e)
		if s := v.reported(e.Node); s != nil && s.Connected {
			one += " is connected to the control channel"
		} else if !e.LastSeen.IsZero() {
			one += " was last seen at " + utc(v.seen(&e))
		}
		known = append(known, one)
	}
	if len(known) == 0 {
		return "no edge is enrolled", "see the hop edge"
	}
	return "no edge has a tunnel (" + strings.Join(
			known,
			"; ",
		) + "): the process edge-agent or its machine is down, its clock is wrong, or its network or --proxy blocks the " +
			"way out",
		"on that machine check that edge-agent runs (systemctl status edge-agent), read its log, and check that TCP to the " +
			"gateways' public port is open"
}

// seen returns when an edge was seen last: a record may be some minutes old, a report is not.
func (v *visit) seen(e *observed.Edge) time.Time {
	at := e.LastSeen
	if s := v.reported(e.Node); s != nil && s.Since.After(at) {
		at = s.Since
	}
	return at
}

// reported returns an edge as the xds-servers report it; nil: they do not, or were not queried.
func (v *visit) reported(node string) *observed.Edge {
	if v.observed == nil {
		return nil
	}
	return v.observed.Edge(node)
}

// recorded returns the number of recorded tunnels of each gateway that has some.
func (v *visit) recorded() (said []string) {
	counts := map[string]int{}
	for _, e := range observed.Recorded(v.tunnel, v.now()) {
		for _, g := range e.Gateways {
			if !e.Revoked() {
				counts[g.Name] += g.Tunnels
			}
		}
	}
	for name, n := range counts {
		said = append(said, fmt.Sprintf("%s: %d", name, n))
	}
	slices.Sort(said)
	return said
}

// tunnelsOnRecord returns the finding from the recorded tunnels. why is the reason why they were not observed.
func (v *visit) tunnelsOnRecord(why string) finding {
	said := v.recorded()
	if len(said) == 0 {
		v.cutOff = true
		cause, cure := v.away()
		return broken("no gateway has a tunnel to this "+v.place()+", according to the Tunnel's status", cause, cure)
	}
	return ok("%s, according to the Tunnel's status (%s)", strings.Join(said, "; "), why)
}
