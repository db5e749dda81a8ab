package rollout

import (
	"fmt"
	"maps"
	"slices"
)

// comparison compares nodes with their state before the rollout.
type comparison struct {
	record  *Record
	in      Input
	next    string          // the id of the next profile
	ready   map[string]bool // gateways
	was, is int             // workers of each gateway, by the two profiles
}

func newComparison(r *Record, in Input) comparison {
	c := comparison{record: r, in: in, next: r.Next.ID(), ready: in.ready(), was: 1, is: 1}
	before, errBefore := r.Current.Settings()
	after, errAfter := r.Next.Settings()
	if errBefore == nil && errAfter == nil {
		c.was, c.is = max(before.Workers, 1), max(after.Workers, 1)
	}
	return c
}

// fault returns the cause of a node's fault; empty: none. atOnce is set if the node itself has rejected the next
// profile. pending is set if the node still has to show that it has no fault.
func (c comparison) fault(m Member) (cause string, atOnce, pending bool) {
	state, announced := c.in.Nodes[m.Node]
	served := announced && state.Profile == c.next
	if served && state.Refusal != "" {
		return "refuses its configuration: " + state.Refusal, true, false
	}
	if !c.in.Known {
		return "", false, true
	}
	if m.ID == "" {
		cause, pending = gatewayFault(c.in.Gateways[m.Name])
	} else {
		cause = c.edgeFault(m)
	}
	switch {
	case cause != "" || c.record.Phase != PhaseFirst:
	case served && !state.Applied:
		cause = "does not answer to its configuration"
	case !served:
		pending = true // its xds-server has not read the record yet
	}
	return cause, false, pending
}

// gatewayFault returns the fault of a gateway. A gateway whose agent is away may be about to be replaced: that is
// neither a fault nor a success.
func gatewayFault(g Gateway) (cause string, pending bool) {
	switch {
	case !g.Connected:
		return "", true
	case g.Hang != "":
		return "its Envoy does not answer: " + g.Hang, false
	case !g.Ready:
		return "takes no clients", false
	}
	return "", false
}

// edgeFault returns the fault of an edge, compared with its state before the rollout.
func (c comparison) edgeFault(m Member) string {
	e := c.in.Edges[m.Node]
	switch {
	case !e.Connected:
		return "its agent is not connected"
	case e.Trouble != "":
		return "reports trouble: " + e.Trouble
	}
	for _, gateway := range slices.Sorted(maps.Keys(m.Tunnels)) {
		if need := c.needs(m.Tunnels[gateway]); c.ready[gateway] && e.Tunnels[gateway] < need {
			return fmt.Sprintf("has %d of %d tunnels to %s", e.Tunnels[gateway], need, gateway)
		}
	}
	return ""
}

// needs returns how many tunnels an edge that had some must have with the next profile. The number is lower only if
// gateways have fewer workers with that profile.
func (c comparison) needs(had int) int {
	if had == 0 {
		return 0
	}
	return max(1, min(had, had*c.is/c.was))
}
