package collect

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Fleet returns what all servers together report of the edges and tunnels with these ids (Tunnel.spec.id), or of all if
// ids is empty. If several servers report the same gateway or edge, the server of its latest connection counts. The
// error means that no server answered; each that did not answer is in Fleet.Servers.
func (s *Servers) Fleet(ctx context.Context, ids ...string) (Fleet, error) {
	answers := make([]*fleetAnswer, len(s.all))
	errs := s.each(ctx, func(ctx context.Context, i int, c *connection) error {
		answer, err := askFleet(ctx, c, ids)
		if err == nil {
			answers[i] = answer
		}
		return err
	})
	return s.merge(answers, errs), answered(errs)
}

// fleetAnswer has all parts of an answer.
type fleetAnswer struct{ inspectv1.FleetPart }

func askFleet(ctx context.Context, c *connection, ids []string) (*fleetAnswer, error) {
	stream, err := inspectv1.NewInspectClient(c.conn).Fleet(ctx, &inspectv1.FleetRequest{TunnelIds: ids, Live: true})
	if err != nil {
		return nil, err
	}
	all := &fleetAnswer{}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if part.GetServer() != nil {
			all.Server = part.GetServer()
		}
		all.Gateways = append(all.Gateways, part.GetGateways()...)
		all.Tunnels = append(all.Tunnels, part.GetTunnels()...)
		all.Edges = append(all.Edges, part.GetEdges()...)
		all.Holes = append(all.Holes, part.GetHoles()...)
		all.Refusals = append(all.Refusals, part.GetRefusals()...)
	}
}

// merge joins answers. nil stands for a server without an answer.
func (s *Servers) merge(answers []*fleetAnswer, errs []error) Fleet {
	var f Fleet
	gateways, edges := map[string]Gateway{}, map[model.EdgeRef]observed.Edge{}
	for i, c := range s.all {
		f.Servers = append(f.Servers, Server{Name: c.name, Err: errs[i]})
		a := answers[i]
		if a == nil {
			continue
		}
		f.Refusals = append(f.Refusals, refusalsOf(c.name, a.GetRefusals())...)
		f.Domain = cmp.Or(f.Domain, model.TunnelDomain(a.GetServer().GetTunnelDomain()))
		f.Servers[i].Version, f.Servers[i].Settled = a.GetServer().GetVersion(), a.GetServer().GetSettled()
		for _, g := range a.GetGateways() {
			one := Gateway{
				Name: g.GetName(), Server: c.name, Installed: g.GetInstalled(), Connected: g.GetConnected(),
				Ready: g.GetConnected() && g.GetReady(),
				Since: timeOf(g.GetSince()), Problem: g.GetError(), Incomplete: g.GetIncomplete(), Hang: g.GetHang(),
				Zone: g.GetZone(), Ways: observed.WaysOf(g.GetWays()),
			}
			if one.Since.IsZero() {
				one.Server = ""
			}
			if other, had := gateways[one.Name]; had {
				one.Installed = one.Installed || other.Installed
				if later(other.Connected, other.Since, one.Connected, one.Since) {
					other.Installed = one.Installed
					one = other
				}
			}
			gateways[one.Name] = one
		}
		for _, e := range a.GetEdges() {
			one := observed.Edge{
				Node: e.GetNode(), ID: e.GetTunnelId(), Server: c.name, Connected: e.GetConnected(), Since: timeOf(e.GetSince()),
				LastError: e.GetReport().GetLastError(), APIServer: observed.APIServerOf(e.GetReport().GetApiServer()),
				Addresses: observed.AddressesOf(e.GetReport()), Ways: observed.WaysOf(e.GetReport().GetWays()),
			}
			if reported := timeOf(e.GetReported()); !reported.IsZero() {
				one.Age = timeOf(a.GetServer().GetNow()).Sub(reported)
			}
			ref := model.EdgeRef{Node: one.Node, ID: one.ID}
			if other, had := edges[ref]; !had || !later(other.Connected, other.Since, one.Connected, one.Since) {
				edges[ref] = one
			}
		}
	}
	for _, g := range gateways {
		f.Gateways = append(f.Gateways, g)
	}
	for _, e := range edges {
		f.Edges = append(f.Edges, e)
	}
	f.addTunnels(s, answers, gateways)
	f.sort()
	return f
}

// addTunnels takes the tunnels of each gateway from the one server that counts for it. A gateway that does not report
// has its last tunnels.
func (f *Fleet) addTunnels(s *Servers, answers []*fleetAnswer, gateways map[string]Gateway) {
	for i, a := range answers {
		if a == nil {
			continue
		}
		counts := func(gateway string) bool { return gateways[gateway].Server == s.all[i].name }
		for _, t := range a.GetTunnels() {
			if counts(t.GetGateway()) {
				f.Tunnels = append(f.Tunnels, Tunnel{
					Gateway: t.GetGateway(), Key: t.GetTunnel().GetKey(), Node: t.GetTunnel().GetNode(),
					ID: t.GetTunnel().GetTunnelId(),
					Worker: t.GetTunnel().
						GetWorker(),
					Since: timeOf(t.GetTunnel().GetSince()), RTT: time.Duration(t.GetRoundTripMicros()) * time.Microsecond,
				})
			}
		}
		for _, h := range a.GetHoles() {
			if counts(h.GetGateway()) {
				f.Unserved = append(
					f.Unserved,
					UnservedWorkers{
						Gateway: h.GetGateway(),
						Node:    h.GetHole().GetNode(),
						ID:      h.GetHole().GetTunnelId(),
						Workers: int(h.GetHole().GetWorkers()),
					},
				)
			}
		}
	}
}

func (f *Fleet) sort() {
	slices.SortFunc(f.Refusals, func(a, b Refusal) int { return b.Last.Compare(a.Last) })
	slices.SortFunc(f.Gateways, func(a, b Gateway) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(f.Edges, func(a, b observed.Edge) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Node, b.Node))
	})
	slices.SortFunc(f.Tunnels, func(a, b Tunnel) int {
		return cmp.Or(
			strings.Compare(a.Gateway, b.Gateway), strings.Compare(a.ID, b.ID), strings.Compare(a.Node, b.Node),
			strings.Compare(a.Key, b.Key),
		)
	})
	slices.SortFunc(f.Unserved, func(a, b UnservedWorkers) int {
		return cmp.Or(strings.Compare(a.Gateway, b.Gateway), strings.Compare(a.ID, b.ID), strings.Compare(a.Node, b.Node))
	})
}

// later returns whether the first of two states is more recent: a connected one comes first, then the one that was
// connected last.
func later(connected bool, since time.Time, other bool, otherSince time.Time) bool {
	if connected != other {
		return connected
	}
	return since.After(otherSince)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil || t.CheckValid() != nil {
		return time.Time{}
	}
	return t.AsTime()
}

// explain converts an error of gRPC for people.
func explain(err error) error {
	if st, ok := status.FromError(err); ok {
		return errors.New(strings.ToLower(st.Code().String()) + ": " + st.Message())
	}
	return err
}
