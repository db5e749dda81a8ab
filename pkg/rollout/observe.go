package rollout

// Observation is what is known of an installation at one time.
type Observation struct {
	// Known is false while some xds-server has not told all it has: then nothing follows from what is absent.
	Known bool
	// Targets are the profiles that the xds-servers are configured for, one for each server; empty: it announced none.
	Targets  []Profile
	Gateways map[string]Gateway
	Edges    map[Node]Edge
	// Nodes are what the nodes of the first wave, and those that refuse something, run.
	Nodes map[Node]State
	// Answered are the connected nodes that have answered to the profile that the record gives them, be it to refuse
	// it; Total are all connected nodes.
	Answered, Total int
}

// Gateway is one gateway.
type Gateway struct {
	Connected bool   // its agent, to an xds-server
	Ready     bool   // it takes clients
	Hang      string // the parts of its Envoy that do not answer; empty: all do
}

// Edge is one edge of a tunnel.
type Edge struct {
	Connected bool           // its agent, to an xds-server
	Trouble   string         // what its agent reports to be wrong; empty: nothing
	Tunnels   map[string]int // by gateway
}

// State is what a node is served.
type State struct {
	Profile string // Profile.ID
	Applied bool   // its Envoy has accepted all of it
	Refusal string // why its Envoy does not; empty: it does, or has not answered
}

// target is the profile that all xds-servers announce, and false while one does not or they differ.
func (o Observation) target() (Profile, bool) {
	if !o.Known || len(o.Targets) == 0 || o.Targets[0] == "" {
		return "", false
	}
	for _, t := range o.Targets[1:] {
		if t != o.Targets[0] {
			return "", false
		}
	}
	return o.Targets[0], true
}

// ready are the gateways that take clients.
func (o Observation) ready() map[string]bool {
	ready := map[string]bool{}
	for name, g := range o.Gateways {
		if g.Ready && g.Connected && g.Hang == "" {
			ready[name] = true
		}
	}
	return ready
}
