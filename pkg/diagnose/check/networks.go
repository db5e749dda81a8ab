package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	remotenetworks "github.com/fairlead/fairlead/pkg/diagnose/networks"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/observed"
)

// networks are the RemoteNetworks of a Cluster, and the Tunnel of its apiservers.
type networks struct {
	all    []*remote
	egress *visit // of the Tunnel of the apiservers; its tunnel is nil if that does not exist
	unread string // why the networks are not known, although the Cluster has some
}

// remote is a RemoteNetwork. Its visit is that of its Tunnel, which is nil if it does not exist.
type remote struct {
	*visit
	object *v1alpha1.RemoteNetwork
	ill    bool // a hop has found it broken: later hops say nothing about it
}

// readNetworks reads the RemoteNetworks of the Cluster and their Tunnels. A user that may not list RemoteNetworks
// learns from the Tunnel of the apiservers that there are some.
func (v *visit) readNetworks(ctx context.Context) {
	v.networks = networks{egress: v.about(ctx, v.key.Name+v1alpha1.EgressTunnelSuffix)}
	var list v1alpha1.RemoteNetworkList
	if err := v.Objects.List(ctx, &list, client.InNamespace(v.key.Namespace)); err != nil {
		if v.networks.egress.tunnel != nil {
			v.networks.unread = "the RemoteNetworks of the Cluster cannot be listed: " + text(err)
		}
		return
	}
	for i := range list.Items {
		if n := &list.Items[i]; n.Spec.ClusterName == v.key.Name {
			one := &remote{visit: v.about(ctx, n.Name+v1alpha1.NetworkTunnelSuffix), object: n}
			one.halted, v.networks.all = hasPause(n), append(v.networks.all, one)
		}
	}
	slices.SortFunc(v.networks.all, func(a, b *remote) int { return cmp.Compare(a.object.Name, b.object.Name) })
}

// about returns the visit of another Tunnel of the Cluster.
func (v *visit) about(ctx context.Context, tunnel string) *visit {
	other := &visit{
		Checker: v.Checker, network: v.network, cluster: v.cluster, broken: map[ID]bool{},
		key: client.ObjectKey{Namespace: v.key.Namespace, Name: tunnel},
	}
	found := &v1alpha1.Tunnel{}
	if v.Objects.Get(ctx, other.key, found) == nil && !found.OfCluster() {
		other.tunnel = found
	}
	return other
}

// hasNetworks reports whether the Cluster has RemoteNetworks.
func (v *visit) hasNetworks() bool { return len(v.networks.all) > 0 || v.networks.unread != "" }

// names returns the names of the Envoy resources without which gateways do not serve the Tunnel: of the routes of
// apiservers, of the Envoy cluster of a network, or of the Envoy clusters of a workload cluster.
func (v *visit) names(ctx context.Context) []string {
	t := v.tunnel
	if t.OfCluster() {
		return t.Status.Names
	}
	// An installation serves one tunnel domain, which xds-servers report with any answer. One that hangs must leave time.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	fleet, err := v.Servers.Observe(ctx, t.HeldID(), []string{t.HeldID()})
	switch {
	case err != nil || fleet.Domain == "":
		return nil
	case t.Spec.EgressOf != "":
		return []string{envoy.ScopeName(fleet.Domain, t.HeldID())}
	}
	return []string{envoy.NetworkCluster(fleet.Domain, t.HeldID())}
}

// served reports whether the Tunnel serves anything.
func (v *visit) served() bool {
	if v.tunnel.OfCluster() {
		return len(v.tunnel.Status.Names) > 0
	}
	return v.tunnel.Status.Served != nil
}

// each returns one finding about all networks: the worst one, or what was found of each. A network that is broken at
// one hop is not the subject of later hops.
func (v *visit) each(look func(n *remote) finding) finding {
	var worst *finding
	var fine, others []string
	result := Skipped
	for _, n := range v.networks.all {
		if n.ill {
			continue
		}
		f := look(n)
		n.ill = f.status == Broken || !n.object.DeletionTimestamp.IsZero()
		f.detail = n.object.Name + ": " + f.detail
		switch {
		case f.status == OK:
			result = OK
			fine = append(fine, f.detail)
		case f.status == Skipped:
			fine = append(fine, f.detail)
		case worst == nil || severity[f.status] > severity[worst.status]:
			worst = &f
			others = append(others, n.object.Name)
		default:
			others = append(others, n.object.Name)
		}
	}
	switch {
	case worst == nil && len(fine) == 0:
		return skipped("no network is left to check")
	case worst == nil:
		return finding{status: result, detail: strings.Join(fine, "; ")}
	case len(others) > 1:
		worst.detail += fmt.Sprintf("; %d networks have a fault here: %s", len(others), strings.Join(others, ", "))
	}
	return *worst
}

// severity orders the results that each combines.
var severity = map[Status]int{Unknown: 1, Warning: 2, Broken: 3}

// checkNetworks checks the RemoteNetworks, and what the controller has decided about them.
func checkNetworks(ctx context.Context, v *visit) finding {
	if v.networks.unread != "" {
		return unknown(
			v.networks.unread,
			"run fairlead check as a user that may list remotenetworks.fairlead.dev in namespace "+v.key.Namespace,
		)
	}
	return v.each(func(n *remote) finding { return v.judgeNetwork(ctx, n.object) })
}

func (v *visit) judgeNetwork(ctx context.Context, n *v1alpha1.RemoteNetwork) finding {
	accepted := apimeta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionAccepted)
	if fault := remotenetworks.Judge(n, accepted); fault != nil {
		return findingOf(fault)
	}
	if accepted == nil || accepted.Status == metav1.ConditionUnknown {
		return v.unanswered(ctx)
	}
	return ok("%s", strings.Join(slices.Concat(n.Spec.CIDRs, n.Spec.DNSSuffixes), ", "))
}

// findingOf returns the finding for a fault.
func findingOf(f *remotenetworks.Fault) finding {
	if f.Warning {
		return warning(f.Detail, f.Cause, f.Cure)
	}
	return broken(f.Detail, f.Cause, f.Cure)
}

// orphans returns the finding for a Cluster that does not exist, although networks name it; nil: none does.
func (v *visit) orphans() *finding {
	var names []string
	for _, n := range v.networks.all {
		names = append(names, n.object.Name)
	}
	if fault := remotenetworks.Orphans(v.key, names); fault != nil {
		f := findingOf(fault)
		return &f
	}
	return nil
}

// checkEgress checks whether the Envoy beside an apiserver is enrolled and connected.
func checkEgress(ctx context.Context, v *visit) finding {
	e := v.networks.egress
	switch {
	case v.networks.unread != "" && e.tunnel == nil:
		return skipped("see the hop networks")
	case e.tunnel == nil:
		return v.unanswered(ctx)
	}
	if f := e.notObservable(); f != nil {
		return *f
	}
	e.observe(ctx)
	if f := checkEdge(ctx, e); f.status == Broken {
		return f
	}
	var connected, away []string
	for _, one := range e.edges() {
		switch {
		case one.Connected && one.LastError != "":
			return e.edgeError(&one)
		case one.Connected:
			connected = append(connected, one.Node)
		}
	}
	for _, one := range observed.Recorded(e.tunnel, v.now()) {
		if one.HoldsCertificate(v.now()) && !slices.Contains(connected, one.Node) {
			away = append(away, nameOf(&one))
		}
	}
	if len(connected) > 0 {
		return ok("%s is connected", strings.Join(connected, ", "))
	}
	if e.notObserved != "" || e.unheard() != "" {
		return e.egressOnRecord()
	}
	return findingOf(remotenetworks.EgressAway(away))
}

// egressOnRecord returns the finding from the Tunnel's status, if a server cannot be queried.
func (v *visit) egressOnRecord() finding {
	ready := apimeta.FindStatusCondition(v.tunnel.Status.Conditions, v1alpha1.ConditionTunnelReady)
	if ready == nil || ready.Status == metav1.ConditionUnknown {
		return unknown(cmp.Or(v.notObserved, v.unheard()), v.howToSee())
	}
	if fault := remotenetworks.EgressOnRecord(ready); fault != nil {
		return findingOf(fault)
	}
	return ok("%s, according to the Tunnel's status", ready.Message)
}

// checkEgressRoute checks whether the Envoys of the gateways have the routes of the apiservers, and the Envoy clusters
// of the networks.
func checkEgressRoute(ctx context.Context, v *visit) finding {
	if v.networks.egress.tunnel == nil {
		return skipped("no apiserver can enrol")
	}
	if f := checkRoute(ctx, v.networks.egress); f.status != OK {
		return f
	}
	return v.each(func(n *remote) finding { return checkRoute(ctx, n.visit) })
}

// checkNetworkEdges checks the edges of the networks and their tunnels.
func checkNetworkEdges(ctx context.Context, v *visit) finding {
	all := v.known(ctx)
	return v.each(func(n *remote) finding {
		tunnels, edge := checkTunnels(ctx, n.visit), checkEdge(ctx, n.visit)
		handshake := checkHandshake(ctx, n.visit)
		// As in decide: the lack of tunnels is only a symptom.
		for _, f := range []finding{edge, handshake, tunnels} {
			if f.status != Broken {
				continue
			}
			if fault := remotenetworks.Misplaced(all, slices.Index(v.networks.all, n)); fault != nil {
				return findingOf(fault)
			}
			return f
		}
		for _, f := range []finding{edge, handshake, tunnels, n.lost()} {
			if f.status == Warning {
				return f
			}
		}
		return tunnels
	})
}

// lost returns a warning about edges that have no tunnel while others have.
func (v *visit) lost() finding {
	if v.tunnel == nil || v.observed == nil || v.notObserved != "" ||
		slices.ContainsFunc(v.observed.Gateways, func(g collect.Gateway) bool { return v.unseen(&g) }) {
		return finding{}
	}
	var lost []string
	for _, e := range observed.Recorded(v.tunnel, v.now()) {
		has := slices.ContainsFunc(v.observed.Tunnels, func(t collect.Tunnel) bool { return t.Node == e.Node })
		if e.HoldsCertificate(v.now()) && !has && v.now().Sub(e.Enrolled) > gracePeriod {
			lost = append(lost, nameOf(&e))
		}
	}
	if len(lost) == 0 {
		return finding{}
	}
	return findingOf(remotenetworks.Lost(lost))
}

// known returns what is known of the networks.
func (v *visit) known(ctx context.Context) (all []remotenetworks.Network) {
	for _, n := range v.networks.all {
		one := remotenetworks.Network{Object: n.object, Tunnel: n.tunnel}
		if n.tunnel != nil && n.observe(ctx) {
			one.Edges = n.edges()
		}
		all = append(all, one)
	}
	return all
}

// checkNodes makes an apiserver dial the kubelets of Nodes in each network, by the way of `kubectl exec`.
func checkNodes(ctx context.Context, v *visit) finding {
	if f := v.cannotAsk(); f != nil {
		return *f
	}
	if v.broken[HopAuthentication] {
		return skipped("the apiserver does not answer")
	}
	plain := *v
	plain.config = rest.CopyConfig(v.config)
	plain.config.NextProtos = []string{"http/1.1"} // in which a request can ask for an upgrade
	client, server, err := plain.client()
	if err != nil {
		return skipped("the kubeconfig cannot be used: " + text(err))
	}
	defer client.CloseIdleConnections()
	dialled, err := remotenetworks.DialNodes(ctx, client, server, v.known(ctx))
	switch {
	case errors.Is(err, remotenetworks.ErrDenied):
		return unknown(
			text(err), "allow the user of the kubeconfig to list nodes and to get nodes/proxy in the workload cluster",
		)
	case err != nil:
		return unknown(text(err), "try again; if it remains, see the log of the apiserver")
	}
	if _, fault := dialled.In(remotenetworks.Outside); fault != nil && !fault.Warning {
		return findingOf(fault)
	}
	return v.each(func(n *remote) finding {
		switch reached, fault := dialled.In(slices.Index(v.networks.all, n)); {
		case fault != nil:
			return findingOf(fault)
		case reached == "":
			return skipped("the Cluster has no Node there")
		default:
			return ok("the apiserver reaches %s", reached)
		}
	})
}

// checkForward makes the edges probe the apiserver through their own listeners, by the way of the machines of their
// network.
func checkForward(ctx context.Context, v *visit) finding {
	return v.each(func(n *remote) finding { return n.forwards(ctx) })
}

// forwards returns the finding for the edges of one network.
func (n *remote) forwards(ctx context.Context) finding {
	switch f := n.notObservable(); {
	case f != nil:
		return *f
	case !n.observe(ctx):
		return unknown(n.notObserved, n.howToSee())
	}
	seen := n.probe(ctx)
	if seen.err != nil {
		return unknown("the edges cannot be queried: "+text(seen.err), n.howToSee())
	}
	behind := map[string]*observed.APIServer{} // an edge without a listener has none
	for _, e := range seen.all {
		if !n.revoked(e.Node) && e.APIServer != nil {
			behind[e.Node] = e.APIServer
		}
	}
	reached, fault := remotenetworks.Forwards(remotenetworks.Network{Object: n.object, Tunnel: n.tunnel}, behind)
	switch {
	case fault != nil:
		return findingOf(fault)
	case reached == "":
		return skipped("no edge listens for machines (--apiserver-listen)")
	}
	return ok("machines reach the apiserver through %s", reached)
}
