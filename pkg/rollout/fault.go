package rollout

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
)

// comparison compares nodes with their state before the rollout.
type comparison struct {
	record  *Record
	in      Input
	next    string          // the id of the next profile
	ready   map[string]bool // gateways
	was, is int             // tunnels of an edge to each gateway, with lanes before, and without lanes after
	// perTunnel is to how many gateways an edge must have tunnels, if the next profile changes that; 0: to the same
	// ones.
	perTunnel int
}

func newComparison(r *Record, in Input) comparison {
	c := comparison{record: r, in: in, next: r.Next.ID(), ready: in.ready(), was: 1, is: 1}
	before, errBefore := r.Current.Settings()
	after, errAfter := r.Next.Settings()
	if errBefore == nil && errAfter == nil {
		c.was = max(before.Workers, 1) * (model.TunnelsPerWorker + model.TunnelsInLanes(before.Lanes))
		c.is = max(after.Workers, 1) * model.TunnelsPerWorker
		if after.PerTunnel != before.PerTunnel {
			c.perTunnel = after.PerTunnel
		}
	}
	return c
}

// condition is how a node is doing with the next profile.
type condition int

const (
	healthy condition = iota
	missing           // nothing is known about the node
	away              // a gateway without its agent, or a node that is not served the next profile yet: only delays
	faulty            // counts if it lasts
	rejects           // the node itself has rejected the next profile, which counts at once
)

// fault returns the condition of a node, and the cause of a fault.
func (c comparison) fault(m Member) (cause string, is condition) {
	state, announced := c.in.Nodes[m.Node]
	served := announced && state.Profile == c.next
	if served && state.Refusal != "" {
		return "refuses its configuration: " + state.Refusal, rejects
	}
	if !c.in.Known {
		return "", missing
	}
	if m.ID == "" {
		cause, is = gatewayFault(c.in.Gateways[m.Name])
	} else if cause = c.edgeFault(m); cause != "" {
		is = faulty
	}
	switch {
	case is != healthy || c.record.Phase != PhaseFirst:
	case served && !state.Applied:
		return "does not answer to its configuration", faulty
	case !served:
		// Its xds-server has not read the record yet, or the node has no stream for its configuration, which an edge could
		// do without for ever.
		return "has not been sent its configuration", away
	}
	return cause, is
}

// gatewayFault returns the fault of a gateway. A gateway whose agent is away may be about to be replaced: that is
// neither a fault nor a success.
func gatewayFault(g Gateway) (cause string, is condition) {
	switch {
	case !g.Connected:
		return "its agent is not connected", away
	case g.Hang != "":
		return "its Envoy does not answer: " + g.Hang, faulty
	case !g.Ready:
		return "takes no clients", faulty
	}
	return "", healthy
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
	if c.perTunnel > 0 {
		return c.assignedFault(m, e)
	}
	// A gateway that was added takes the place of another one, which is no fault.
	moved := c.gateways(e.Tunnels) >= c.gateways(m.Tunnels)
	for _, gateway := range slices.Sorted(maps.Keys(m.Tunnels)) {
		if e.Tunnels[gateway] == 0 && moved {
			continue
		}
		if need := c.needs(m.Tunnels[gateway]); c.ready[gateway] && e.Tunnels[gateway] < need {
			return fmt.Sprintf("has %d of %d tunnels to %s", e.Tunnels[gateway], need, gateway)
		}
	}
	return ""
}

// assignedFault returns the fault of an edge whose number of gateways changes: it may lose its tunnels to any of them,
// as long as it has some to the new number, or to all if there are fewer.
func (c comparison) assignedFault(m Member, e Edge) string {
	need := min(c.gateways(m.Tunnels), c.perTunnel)
	if has := c.gateways(e.Tunnels); has < need {
		return fmt.Sprintf("has tunnels to %d of %d gateways", has, need)
	}
	return ""
}

// gateways returns to how many of the gateways that accept clients an edge with these tunnels has some.
func (c comparison) gateways(tunnels map[string]int) (n int) {
	for gateway := range c.ready {
		if tunnels[gateway] > 0 {
			n++
		}
	}
	return n
}

// needs returns how many tunnels an edge that had some must have with the next profile. The number is lower if gateways
// have fewer workers with that profile, and by the lanes, which edges get and lose with the size of the fleet too.
func (c comparison) needs(had int) int {
	if had == 0 {
		return 0
	}
	return max(1, min(had, had*c.is/c.was))
}
