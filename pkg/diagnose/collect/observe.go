package collect

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Observe returns what all servers together report of one workload cluster: the Fleet of its tunnel id, where each
// gateway has its Resources with some names. Only gateways that report have tunnels and holes. The error means that no
// server answered; each that did not answer, or not with the resources, is in Fleet.Servers.
func (s *Servers) Observe(ctx context.Context, id string, names []string) (Fleet, error) {
	var fleet Fleet
	var nodes []Node
	var err error
	var unread []error
	group := errgroup.Group{}
	group.Go(func() error { fleet, err = s.Fleet(ctx, id); return nil })
	group.Go(func() error { nodes, unread = s.resources(ctx, names); return nil })
	_ = group.Wait()
	for i := range fleet.Servers {
		if server := &fleet.Servers[i]; server.Err == nil {
			server.Unread = unread[i]
		}
	}
	if err == nil && len(fleet.Servers) == 0 {
		err = errors.New("no xds-server found")
	}
	fleet.keep(id)
	fleet.addResources(nodes, names)
	return fleet, err
}

// keep removes what is not current or not of the workload cluster: other edges, and the last tunnels of gateways that
// do not report.
func (f *Fleet) keep(id string) {
	reports := map[string]bool{}
	for i := range f.Gateways {
		reports[f.Gateways[i].Name] = f.Gateways[i].Connected
	}
	f.Edges = slices.DeleteFunc(f.Edges, func(e observed.Edge) bool { return e.ID != id })
	f.Tunnels = slices.DeleteFunc(f.Tunnels, func(t Tunnel) bool { return !reports[t.Gateway] })
	f.Unserved = slices.DeleteFunc(f.Unserved, func(h UnservedWorkers) bool { return !reports[h.Gateway] })
}

// addResources adds the resources with some names to each gateway.
func (f *Fleet) addResources(nodes []Node, names []string) {
	for i := range f.Gateways {
		g := &f.Gateways[i]
		for j := range nodes {
			if nodes[j].Role == model.RoleGateway && nodes[j].Name == g.Name {
				g.Resources = named(nodes[j].Resources, names)
			}
		}
	}
}

// named returns a resource for each name.
func named(resources []Resource, names []string) (all []Resource) {
	for _, name := range names {
		one := Resource{Name: name, Status: Missing}
		for _, r := range resources {
			if r.Name == name {
				one = r
			}
		}
		all = append(all, one)
	}
	return all
}

// Take removes the resource with a name from each gateway, and returns what was published, by gateway.
func (f *Fleet) Take(name string) map[string]*anypb.Any {
	taken := map[string]*anypb.Any{}
	for i := range f.Gateways {
		g := &f.Gateways[i]
		g.Resources = slices.DeleteFunc(slices.Clone(g.Resources), func(r Resource) bool {
			if r.Name == name {
				taken[g.Name] = r.Config
			}
			return r.Name == name
		})
	}
	return taken
}

// TunnelsTo returns the tunnels to a gateway.
func (f *Fleet) TunnelsTo(gateway string) (all []Tunnel) {
	for _, t := range f.Tunnels {
		if t.Gateway == gateway {
			all = append(all, t)
		}
	}
	return all
}

// Edge returns an edge by its node name; nil: it has not reported.
func (f *Fleet) Edge(node string) *observed.Edge {
	for i := range f.Edges {
		if f.Edges[i].Node == node {
			return &f.Edges[i]
		}
	}
	return nil
}
