package waves

import (
	reportview "github.com/fairlead/fairlead/pkg/report/view"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// observe returns the announcements of the xds-servers as the input of a decision.
func observe(now reportview.FleetNow) rollout.Observation {
	o := rollout.Observation{
		Known: now.Known, Gateways: map[string]rollout.Gateway{},
		Edges: map[rollout.Node]rollout.Edge{}, Nodes: map[rollout.Node]rollout.State{},
	}
	for name, g := range now.Gateways {
		o.Gateways[name] = rollout.Gateway{Connected: g.Connected, Ready: g.Ready, Hang: g.Hang}
	}
	for ref, e := range now.Edges {
		o.Edges[rollout.Node{Name: ref.Node, ID: ref.ID}] = rollout.Edge{
			Connected: e.Connected, Trouble: e.Report.GetLastError(), Tunnels: e.Gateways,
		}
	}
	for _, server := range now.Profiles {
		target, err := rollout.ParseProfile(server.GetTarget())
		if err != nil { // also of nil: the server announces nothing
			target = ""
		}
		o.Targets = append(o.Targets, target)
		o.Answered, o.Total = o.Answered+int(server.GetAnswered()), o.Total+int(server.GetTotal())
		for _, n := range server.GetNodes() {
			at := rollout.Node{Name: n.GetNode(), ID: n.GetTunnelId()}
			state := rollout.State{Profile: n.GetProfile(), Applied: n.GetApplied(), Refusal: n.GetRefusal()}
			// A node that changes its server may be connected to both for a moment: the worse state counts.
			if other, twice := o.Nodes[at]; !twice || state.Refusal != "" || other.Refusal == "" && !state.Applied {
				o.Nodes[at] = state
			}
		}
	}
	return o
}
