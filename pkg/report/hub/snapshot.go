package hub

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// measureTimeout is how long a gateway has to measure its tunnels and to answer.
	measureTimeout = time.Second
)

// Snapshot is a snapshot of a hub.
type Snapshot struct {
	Now      time.Time // by the hub's clock, as all times except the tunnels'
	Settled  bool      // every live agent has had time to report
	Gateways []GatewaySnapshot
	Edges    []*reportv1.EdgeState // they must not be changed
}

// GatewaySnapshot is a gateway of the installation, or one that has reported.
type GatewaySnapshot struct {
	Name             string
	Installed        bool
	Connected, Ready bool
	Incomplete       string    // why it may have tunnels that it does not report; empty: it has none
	Hang             string    // the parts of its Envoy that do not answer its agent; empty: all do
	Since            time.Time // zero: it has never reported to this hub
	Tunnels          []*reportv1.MeasuredTunnel
	Holes            []*reportv1.Hole
	Zone             string          // empty: not known, or not asked
	Ways             []*reportv1.Way // to the other gateways, as Zone
	Problem          error           // why the tunnels were not measured; nil: they were, or live was not set
}

// Snapshot returns a snapshot of the tunnels with these ids, or of all if ids is empty. live also asks the gateways
// that report for worker, age and round-trip time of each tunnel; a gateway that does not answer within measureTimeout
// has a Problem. Concurrent calls for the same ids share one question to a gateway.
func (h *Hub) Snapshot(ctx context.Context, ids []string, live bool) Snapshot {
	var answers map[string]*measured
	if live {
		answers = h.measureAll(ctx, ids)
	}
	some := make(map[string]bool, len(ids))
	for _, id := range ids {
		some[id] = true
	}
	look, gateways, edges := h.copies(answers, func(id string) bool { return len(ids) == 0 || some[id] })
	installed, known := h.admission.Gateways(), map[string]bool{}
	for _, g := range gateways {
		one := g.snapshot(answers[g.Name])
		one.Installed, known[g.Name] = slices.Contains(installed, g.Name), true
		look.Gateways = append(look.Gateways, one)
	}
	for _, name := range installed {
		if !known[name] {
			look.Gateways = append(look.Gateways, GatewaySnapshot{Name: name, Installed: true})
		}
	}
	for _, e := range edges {
		look.Edges = append(look.Edges, &reportv1.EdgeState{
			Node: e.node, TunnelId: e.id, Connected: e.connected,
			Since: timestamppb.New(e.since), Report: e.report, Reported: timestamppb.New(e.received),
		})
	}
	return look
}

// gatewayCopy is what the snapshot of a gateway is made from. It may have 100,000 tunnels.
type gatewayCopy struct {
	GatewaySnapshot // without lists and answers
	tunnels         []tunnelCopy
	holes           []countState
}

type tunnelCopy struct {
	key string
	pair
}

// copies returns a snapshot without gateways and edges, copies of the gateways, and of the edges whose id is wanted.
func (h *Hub) copies(
	answers map[string]*measured, wanted func(id string) bool,
) (look Snapshot, gateways []gatewayCopy, edges []edgeState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, g := range h.gateways {
		gateways = append(gateways, g.copied(name, !answers[name].good(), wanted))
	}
	for p, e := range h.edges {
		if wanted(p.id) {
			edges = append(edges, edgeState{p, *e})
		}
	}
	return Snapshot{Now: h.now(), Settled: h.settled()}, gateways, edges
}

// copied returns a copy of a gateway, with or without its tunnels.
func (g *gateway) copied(name string, tunnels bool, wanted func(id string) bool) gatewayCopy {
	c := gatewayCopy{GatewaySnapshot: GatewaySnapshot{
		Name: name, Connected: g.connected, Ready: g.ready, Incomplete: g.incomplete, Hang: g.hang, Since: g.since,
	}}
	if tunnels {
		for key, p := range g.tunnels {
			if wanted(p.id) {
				c.tunnels = append(c.tunnels, tunnelCopy{key, p})
			}
		}
	}
	for p, n := range g.counts {
		if n.without > 0 && wanted(p.id) {
			c.holes = append(c.holes, countState{name, p, n})
		}
	}
	return c
}

// snapshot returns the snapshot of a gateway, with its measurements if it answered.
func (g gatewayCopy) snapshot(answer *measured) GatewaySnapshot {
	one := g.GatewaySnapshot
	if answer != nil {
		one.Tunnels, one.Zone, one.Ways, one.Problem = answer.tunnels, answer.zone, answer.ways, answer.err
	}
	if !answer.good() {
		one.Tunnels = nil
		for _, t := range g.tunnels {
			one.Tunnels = append(one.Tunnels, &reportv1.MeasuredTunnel{
				Tunnel: &reportv1.Tunnel{Key: t.key, Node: t.node, TunnelId: t.id},
			})
		}
	}
	for _, hole := range g.holes {
		one.Holes = append(one.Holes, &reportv1.Hole{Node: hole.node, TunnelId: hole.id, Workers: int32(hole.without)})
	}
	return one
}

// measured is the answer of a gateway.
type measured struct {
	tunnels []*reportv1.MeasuredTunnel
	zone    string
	ways    []*reportv1.Way
	err     error
}

// good reports whether there is an answer without an error.
func (m *measured) good() bool { return m != nil && m.err == nil }

// measureAll asks all gateways that report.
func (h *Hub) measureAll(ctx context.Context, ids []string) map[string]*measured {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	answers := map[string]*measured{}
	h.mu.Lock()
	for name, g := range h.gateways {
		if g.connected {
			answers[name] = &measured{}
		}
	}
	h.mu.Unlock()
	var asked sync.WaitGroup
	for name, to := range answers {
		asked.Go(func() {
			answer, err := h.measure(ctx, name, ids)
			*to = answer
			to.err = err
		})
	}
	asked.Wait()
	return answers
}

// measure asks one gateway.
func (h *Hub) measure(ctx context.Context, gateway string, ids []string) (measured, error) {
	key := "tunnels " + gateway + " " + strings.Join(slices.Sorted(slices.Values(ids)), " ")
	return together(ctx, h, key, measureTimeout, func(ctx context.Context) (all measured, err error) {
		q, forget, err := h.ask(func(s *session) bool {
			return s.subject.Role == model.RoleGateway && s.subject.Node == gateway
		},
			&reportv1.Question{Tunnels: &reportv1.TunnelsQuestion{TunnelIds: ids}}, maxGatewayAnswer)
		if err != nil {
			return all, err
		}
		defer forget()
		err = q.all(ctx, func(a *reportv1.Answer) error {
			for _, t := range a.GetTunnels() {
				if t.GetTunnel() == nil {
					return errors.New("its agent's answer has an invalid tunnel")
				}
			}
			all.tunnels = append(all.tunnels, a.GetTunnels()...)
			if a.GetZone() != "" {
				all.zone = printable.Text(a.GetZone(), report.MaxText)
			}
			if len(a.GetWays()) > 0 {
				all.ways = report.CleanWays(a.GetWays(), model.MaxGateways)
			}
			return nil
		})
		return all, err
	})
}

// together calls ask once for all concurrent calls with one key. The answer is shared and must not be changed.
func together[T any](ctx context.Context, h *Hub, key string, most time.Duration,
	ask func(context.Context) (T, error),
) (answer T, err error) {
	done := h.probes.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(h.open, most) // of all callers
		defer cancel()
		return ask(ctx)
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return answer, r.Err
		}
		return r.Val.(T), nil
	case <-ctx.Done():
		return answer, status.FromContextError(ctx.Err()).Err()
	}
}

// Dump asks an agent for what its Envoy runs, or for the state of its relay, and writes the answer, a gzip stream, as
// it arrives. The error is a gRPC status: codes.NotFound if the node does not report here.
func (h *Hub) Dump(ctx context.Context, node string, what *reportv1.DumpQuestion, write func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, report.DumpTime)
	defer cancel()
	defer context.AfterFunc(h.open, cancel)()
	most := maxEdgeAnswer
	if model.ValidateGatewayName(node) == nil {
		most = maxGatewayAnswer
	}
	q, forget, err := h.ask(func(s *session) bool { return s.subject.Node == node },
		&reportv1.Question{Dump: what}, most)
	if err != nil {
		return err
	}
	defer forget()
	return q.all(ctx, func(a *reportv1.Answer) error {
		if len(a.GetDump()) == 0 {
			return nil
		}
		return write(a.GetDump())
	})
}
