package rollout

// Observation is what is known of an installation at one time.
type Observation struct {
	// Known is false while an xds-server has not reported everything. Then a missing node proves nothing.
	Known bool
	// Targets are the profiles that the xds-servers are configured for, one for each server; empty: it announced none.
	Targets  []Profile
	Gateways map[string]Gateway
	Edges    map[Node]Edge
	// Nodes has the states of the nodes of the first wave, and of nodes that reject something.
	Nodes map[Node]State
	// Answered is the number of connected nodes that have accepted or rejected the profile that the record gives them.
	// Total is the number of all connected nodes.
	Answered, Total int
}

// Gateway is one gateway.
type Gateway struct {
	Connected bool   // its agent is connected to an xds-server
	Ready     bool   // it accepts clients
	Hang      string // the parts of its Envoy that do not answer; empty: all do
}

// Edge is one edge of a tunnel.
type Edge struct {
	Connected bool           // its agent is connected to an xds-server
	Trouble   string         // the trouble that its agent reports; empty: none
	Tunnels   map[string]int // by gateway
}

// State is what a node is served.
type State struct {
	Profile string // Profile.ID
	Applied bool   // its Envoy has accepted all of it
	Refusal string // why its Envoy rejects it; empty: it does not, or has not answered
}

// target returns the profile that all xds-servers announce. It returns false if one announces none or they differ.
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

// ready returns the gateways that accept clients.
func (o Observation) ready() map[string]bool {
	ready := map[string]bool{}
	for name, g := range o.Gateways {
		if g.Ready && g.Connected && g.Hang == "" {
			ready[name] = true
		}
	}
	return ready
}
