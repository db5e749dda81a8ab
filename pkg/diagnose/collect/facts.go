package collect

import (
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/observed"
)

// DisconnectedSince returns since when the gateway's agent has not reported; zero: it does, or that is not known.
func (g *Gateway) DisconnectedSince() time.Time {
	return observed.DisconnectedSince(g.Connected, g.Since)
}

// Away returns whether the gateway is one of the installation and its agent does not report.
func (g *Gateway) Away() bool { return g.Installed && !g.Connected }

// Serves returns whether the gateway accepts clients, by its current report.
func (g *Gateway) Serves() bool { return g.Connected && g.Ready }

// Silent returns why servers did not answer, in their order; nil: all did.
func (f *Fleet) Silent() (errs []error) {
	for _, s := range f.Servers {
		if s.Err != nil {
			errs = append(errs, s.Err)
		}
	}
	return errs
}

// Settled returns whether every agent has had time to report to each server that answered. Then an absent agent does
// not report.
func (f *Fleet) Settled() bool {
	return !slices.ContainsFunc(f.Servers, func(s Server) bool { return s.Err == nil && !s.Settled })
}

// Unreported returns the nodes of edges that have tunnels and no report, in order of tunnels, except nodes for which
// skip returns true. It is empty while the fleet is not settled.
func (f *Fleet) Unreported(skip func(node string) bool) (nodes []string) {
	if !f.Settled() {
		return nil
	}
	for _, t := range f.Tunnels {
		e := f.Edge(t.Node)
		if (e == nil || !e.Connected) && !skip(t.Node) && !slices.Contains(nodes, t.Node) {
			nodes = append(nodes, t.Node)
		}
	}
	return nodes
}
