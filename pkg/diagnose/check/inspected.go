package check

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Inspected are Servers that pkg/diagnose/collect asks.
type Inspected struct{ Servers *collect.Servers }

// Sight implements Servers.
func (i Inspected) Sight(ctx context.Context, id string, names []string) (Sight, error) {
	var fleet collect.Fleet
	var nodes []collect.Node
	var unanswered error
	group := errgroup.Group{}
	group.Go(func() (err error) { fleet, unanswered = i.Servers.Fleet(ctx, id); return nil })
	group.Go(func() error { nodes, _ = i.Servers.Resources(ctx, names...); return nil }) // who did not answer is in the fleet
	_ = group.Wait()
	var s Sight
	for _, server := range fleet.Servers {
		one := ServerSight{Name: server.Name, Settled: server.Settled}
		if server.Err != nil {
			one.Problem = text(server.Err)
		}
		s.Servers = append(s.Servers, one)
	}
	if unanswered != nil {
		return s, unanswered
	}
	s.Gateways = gatewaysOf(fleet, nodes, names)
	for _, r := range fleet.Refusals {
		s.Refusals = append(s.Refusals, RefusalSight{Address: r.Address, Handshake: r.About == collect.AboutHandshake, Reason: r.Reason, Last: r.Last})
	}
	for _, e := range fleet.Edges {
		if e.ID == id {
			s.Edges = append(s.Edges, edgeOf(e))
		}
	}
	if len(fleet.Servers) == 0 {
		return s, errors.New("there is none")
	}
	return s, nil
}

// Look implements Servers.
func (i Inspected) Look(ctx context.Context, id string) (all []EdgeLook, err error) {
	looks, err := i.Servers.Look(ctx, id)
	for _, l := range looks {
		one := EdgeLook{Node: l.Node, Problem: l.Problem}
		if l.APIServer != nil {
			one.APIServer = apiServerOf(l.APIServer)
		}
		all = append(all, one)
	}
	return all, err
}

func gatewaysOf(fleet collect.Fleet, nodes []collect.Node, names []string) (all []GatewaySight) {
	for _, g := range fleet.Gateways {
		one := GatewaySight{
			Name: g.Name, Installed: g.Installed, Connected: g.Connected, Ready: g.Ready, Incomplete: g.Incomplete, Hang: g.Hang, Since: g.Since,
		}
		if g.Connected {
			one.Silent = g.Problem
		}
		for _, node := range nodes {
			if node.Role == model.RoleGateway && node.Name == g.Name {
				one.Routes = routesOf(node, names)
			}
		}
		for _, t := range fleet.Tunnels {
			if t.Gateway == g.Name && g.Connected {
				one.Tunnels = append(one.Tunnels, TunnelSight{Node: t.Node, Worker: t.Worker, Since: t.Since, RoundTrip: t.RTT})
			}
		}
		for _, h := range fleet.Holes {
			if h.Gateway == g.Name && g.Connected {
				one.Holes = append(one.Holes, HoleSight{Node: h.Node, Workers: h.Workers})
			}
		}
		all = append(all, one)
	}
	return all
}

// routesOf are the states of resources on one gateway.
func routesOf(node collect.Node, names []string) (all []RouteSight) {
	for _, name := range names {
		one := RouteSight{Name: name, State: RouteMissing}
		for _, r := range node.Resources {
			if r.Name == name {
				one.State, one.Message, one.Since = RouteState(r.Status), r.Refusal, r.Since
			}
		}
		all = append(all, one)
	}
	return all
}

func edgeOf(e collect.Edge) EdgeSight {
	one := EdgeSight{Node: e.Node, Connected: e.Connected, Since: e.Since, LastError: e.Report.GetLastError(), Age: e.Age}
	if a := e.Report.GetApiServer(); a != nil {
		one.APIServer = apiServerOf(a)
	}
	return one
}

func apiServerOf(a *reportv1.APIServer) *APIServerSight {
	one := &APIServerSight{Address: a.GetAddress(), Healthy: a.GetHealthy(), Message: a.GetMessage(), Version: a.GetVersion(), CertificateNames: a.GetCertificateNames()}
	if end := a.GetCertificateNotAfter(); end.IsValid() {
		one.CertificateEnd = end.AsTime()
	}
	return one
}
