package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/observed"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// enrolled returns the condition that reports whether an edge holds a certificate.
func enrolled(tunnel *v1alpha1.Tunnel, edges []observed.Edge, now time.Time) metav1.Condition {
	count := 0
	for i := range edges {
		if edges[i].HoldsCertificate(now) {
			count++
		}
	}
	if count == 0 {
		return metav1.Condition{
			Type: v1alpha1.ConditionEnrolled, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoEdge,
			Message: notEnrolled(tunnel),
		}
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionEnrolled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEnrolled,
		Message: fmt.Sprintf("%s a valid certificate", condition.Counted(count, "edge has", "edges have")),
	}
}

// notEnrolled says that no edge has a certificate, and how one gets its first.
func notEnrolled(tunnel *v1alpha1.Tunnel) string {
	secret := tunnel.Name + v1alpha1.BootstrapSecretSuffix
	switch {
	case tunnel.Spec.Network != "":
		return fmt.Sprintf(
			"no edge has a valid certificate: run edge-agent in the network with the file in Secret %s, as fairlead network "+
				"join -n %s %s prints", secret, tunnel.Namespace, tunnel.Spec.Network,
		)
	case tunnel.Spec.EgressOf != "":
		return fmt.Sprintf(
			"no apiserver has a valid certificate: run an egress with the file in Secret %s beside each, as fairlead network "+
				"egress -n %s %s prints", secret, tunnel.Namespace, tunnel.Spec.EgressOf,
		)
	}
	return "no edge has a valid certificate: run edge-agent with the file in Secret " + secret
}

// tunnelReady returns the condition that reports whether there are tunnels: an edge has all if it has some to perTunnel
// gateways, or to all if that is 0. An absent tunnel counts only if the live state is complete.
func tunnelReady(live reportview.Live, revoked []string, perTunnel int) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionTunnelReady, Status: metav1.ConditionTrue}
	edges, complete := 0, false
	which := "every gateway"
	if perTunnel <= 0 || perTunnel >= len(live.Gateways) {
		perTunnel = len(live.Gateways)
	} else {
		which = condition.Counted(perTunnel, "gateway", "gateways")
	}
	var without []string
	for i := range live.Edges {
		edge := &live.Edges[i]
		if edge.Tunnels() == 0 || slices.Contains(revoked, edge.Node) {
			continue
		}
		edges++
		has := 0
		for _, name := range live.Gateways {
			if edge.Gateways[name] > 0 {
				has++
			}
		}
		everywhere := has >= perTunnel
		if everywhere && len(edge.Without) > 0 {
			without = append(without, workersWithout(edge))
		}
		complete = complete || everywhere && len(edge.Without) == 0
	}
	switch {
	case edges == 0 && !live.Known:
		return condition.Unknown(c.Type, "no xds-server has sent the reports of the gateways")
	case edges == 0 && len(live.Gateways) == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNoTunnel, "no gateway is up"
	case edges == 0:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoTunnel
		c.Message = fmt.Sprintf("no edge has a tunnel to any of the gateways %s", strings.Join(live.Gateways, ", "))
	case complete:
		c.Reason, c.Message = v1alpha1.ReasonConnected, fmt.Sprintf(
			"%s connected to %s", condition.Counted(edges, "edge is", "edges are"), which,
		)
	case len(without) > 0:
		c.Reason = v1alpha1.ReasonPartlyConnected
		c.Message = fmt.Sprintf(
			"%s connected, but none to every worker of every gateway; the gateways repair that: %s",
			condition.Counted(edges, "edge is", "edges are"), strings.Join(without, "; "),
		)
	case perTunnel < len(live.Gateways):
		c.Reason = v1alpha1.ReasonPartlyConnected
		c.Message = fmt.Sprintf(
			"%s connected, but none to %s", condition.Counted(edges, "edge is", "edges are"), which,
		)
	default:
		c.Reason = v1alpha1.ReasonPartlyConnected
		c.Message = fmt.Sprintf(
			"%s connected, but none to all gateways %s", condition.Counted(edges, "edge is", "edges are"),
			strings.Join(live.Gateways, ", "),
		)
	}
	return c
}

// workersWithout describes on which workers an edge has no tunnel.
func workersWithout(edge *reportview.Edge) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(edge.Without)) {
		parts = append(parts, fmt.Sprintf("%s of %s", condition.Counted(edge.Without[name], "worker", "workers"), name))
	}
	return fmt.Sprintf("%s has no tunnel on %s", edge.Node, strings.Join(parts, ", "))
}

// liveConditions returns the conditions of a Tunnel that depend on live state.
func liveConditions(
	tunnel *v1alpha1.Tunnel, edges []observed.Edge, live reportview.Live, perTunnel int, now time.Time,
) []metav1.Condition {
	revoked := tunnel.Spec.RevokedEdges
	switch {
	case tunnel.Spec.EgressOf != "":
		return []metav1.Condition{enrolled(tunnel, edges, now), egressReady(tunnel, edges, live)}
	case tunnel.Spec.Network != "":
		return []metav1.Condition{enrolled(tunnel, edges, now), tunnelReady(live, revoked, perTunnel)}
	}
	return []metav1.Condition{
		enrolled(tunnel, edges, now), tunnelReady(live, revoked, perTunnel), apiServerReachable(live, revoked),
	}
}

// egressReady returns the condition that reports whether a node beside an apiserver is connected to the control
// channel. Such a node has no reverse tunnel.
func egressReady(tunnel *v1alpha1.Tunnel, edges []observed.Edge, live reportview.Live) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionTunnelReady, Status: metav1.ConditionTrue}
	connected := 0
	for i := range live.Edges {
		if live.Edges[i].Connected && !slices.Contains(tunnel.Spec.RevokedEdges, live.Edges[i].Node) {
			connected++
		}
	}
	switch {
	case connected > 0:
		c.Reason = v1alpha1.ReasonConnected
		c.Message = condition.Counted(connected, "apiserver is connected", "apiservers are connected")
	case !live.Known:
		return condition.Unknown(c.Type, "no xds-server has sent the reports of apiservers")
	case egressLost(tunnel, edges):
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonEgressLost
		c.Message = "no apiserver is connected, but one has enrolled: see the log of the container beside each apiserver"
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoEgress
		c.Message = "no apiserver is connected: run an egress beside each apiserver of the Cluster"
	}
	return c
}

// egressLost reports whether the apiservers of a Cluster, none of which is connected, are expected to be: one is on
// record and not revoked. A record outlives its certificate by records.GraceTime.
func egressLost(tunnel *v1alpha1.Tunnel, edges []observed.Edge) bool {
	return slices.ContainsFunc(edges, func(e observed.Edge) bool {
		return !e.Revoked() && !slices.Contains(tunnel.Spec.RevokedEdges, e.Node)
	})
}

// apiServerReachable returns the condition that reports whether an edge reaches the apiserver. Only edges can observe
// that.
func apiServerReachable(live reportview.Live, revoked []string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAPIServerReachable}
	var healthy int
	var problems []string
	for i := range live.Edges {
		edge := &live.Edges[i]
		server := edge.Report.GetApiServer()
		switch {
		case !edge.Connected || server == nil || slices.Contains(revoked, edge.Node):
		case server.GetHealthy():
			healthy++
		default:
			problems = append(
				problems,
				fmt.Sprintf(
					"%s: %s: %s", edge.Node, bounded(server.GetAddress(), maxReported), bounded(server.GetMessage(), maxReported),
				),
			)
		}
	}
	switch {
	case healthy > 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonReachable
		c.Message = fmt.Sprintf("%s the apiserver", condition.Counted(healthy, "edge reaches", "edges reach"))
	case len(problems) == 0:
		return condition.Unknown(c.Type, "no connected edge has reported whether it reaches the apiserver")
	case !live.Known:
		return condition.Unknown(c.Type, "not all edges are known; "+strings.Join(problems, "; "))
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonUnreachable, strings.Join(problems, "; ")
	}
	return c
}

// summary lists the conditions that Ready depends on, in the order of a request. The first two
// also apply without a tunnel.
var summary = []string{
	v1alpha1.ConditionAccepted, v1alpha1.ConditionKubeconfigReady, v1alpha1.ConditionEnrolled,
	v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable,
}

// summaryOfOthers is summary for a Tunnel that leads to no apiserver.
var summaryOfOthers = []string{
	v1alpha1.ConditionAccepted, v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady,
}

// ready returns the condition that sums up the others. False takes precedence over Unknown.
func ready(tunnel *v1alpha1.Tunnel, conditions []metav1.Condition) metav1.Condition {
	c := metav1.Condition{
		Type:    v1alpha1.ConditionReady,
		Status:  metav1.ConditionTrue,
		Reason:  v1alpha1.ReasonReady,
		Message: "clients reach the apiserver",
	}
	kinds := summary
	switch {
	case tunnel.Spec.Network != "":
		kinds, c.Message = summaryOfOthers, "edges serve the network"
	case tunnel.Spec.EgressOf != "":
		kinds, c.Message = summaryOfOthers, "apiservers may use the networks of the Cluster"
	}
	if a := apimeta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted); a != nil &&
		a.Reason == v1alpha1.ReasonNotTunnelled {
		kinds, c.Message = summary[:2], "the kubeconfig is written; no tunnel is made"
	}
	for _, kind := range kinds {
		found := apimeta.FindStatusCondition(conditions, kind)
		switch {
		case found != nil && found.Status == metav1.ConditionFalse:
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNotReady, kind+": "+found.Message
			return c
		case c.Status != metav1.ConditionTrue:
		case found == nil:
			c = condition.Unknown(c.Type, kind+": unknown yet")
		case found.Status == metav1.ConditionUnknown:
			c = condition.Unknown(c.Type, kind+": "+found.Message)
		}
	}
	return c
}

// keepKnown returns the previous condition instead of an unknown one while there is doubt: a restart of an xds-server
// or of the controller says nothing about tunnels.
func keepKnown(before []metav1.Condition, c metav1.Condition, doubt bool) metav1.Condition {
	was := apimeta.FindStatusCondition(before, c.Type)
	if c.Status != metav1.ConditionUnknown || !doubt || was == nil || was.Status == metav1.ConditionUnknown {
		return c
	}
	return *was
}

// firstEnd returns when the first valid certificate of an edge ends; zero: never.
func firstEnd(edges []v1alpha1.EdgeStatus, now time.Time) (end time.Time) {
	for _, e := range edges {
		if at := e.CertificateNotAfter.Time; at.After(now) && (end.IsZero() || at.Before(end)) {
			end = at
		}
	}
	return end
}
