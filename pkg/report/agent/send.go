package agent

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

const (
	// edgeInterval and gatewayInterval are the least time between two messages: no shorter than a hub reads them.
	edgeInterval, gatewayInterval = 2 * report.EdgePace, 2 * report.GatewayPace
)

// EdgeSource is what an edge-agent reports of one tunnel.
type EdgeSource struct {
	Report  func() *reportv1.EdgeReport
	Changed <-chan struct{} // signalled when Report returns another value
	Dump    Dump            // writes what Envoy runs; nil: the question is rejected
	See     See             // observes the apiserver now; nil: the question is rejected
	// Reopen is the wait before the stream is opened again; zero: report.Reopening.
	Reopen retry.Backoff
}

// SendEdge reports for one tunnel of an edge until ctx ends (nil) or the server rejects it permanently (the error then
// wraps certs.ErrRefused).
func SendEdge(ctx context.Context, conn grpc.ClientConnInterface, from EdgeSource, log *slog.Logger) error {
	changed := from.Changed
	return report.Keep(ctx, reopening(from.Reopen), log, func(ctx context.Context, patient bool) error {
		ctx, cancel := context.WithCancel(ctx)
		stream, err := report.Open(ctx, patient, reportv1.NewReportClient(conn).Edge)
		if err != nil {
			cancel()
			return err
		}
		send := oneByOne(stream.Send)
		answers := newAnswers(&answers{
			send: func(a *reportv1.Answer) error { return send(&reportv1.EdgeReport{Answer: a}) },
			dump: from.Dump, see: from.See, chunk: edgeChunk, pace: edgeInterval,
		})
		defer answers.wait()
		defer cancel()
		ended := receive(stream.Recv, func(orders *reportv1.EdgeOrders) { answers.take(ctx, orders.GetQuestion()) })
		var sent *reportv1.EdgeReport
		for {
			next := report.CleanEdge(from.Report()) // so that it is accepted, and that truncated text makes no difference
			if !proto.Equal(next, sent) {
				sent = next
				if send(next) != nil {
					return <-ended // which has the reason
				}
			}
			if err := pause(ended, edgeInterval); err != nil {
				return err
			}
			select {
			case err := <-ended:
				return err
			case _, ok := <-changed:
				if !ok {
					changed = nil
				}
			}
		}
	})
}

// GatewayState is the state of a gateway's Envoy.
type GatewayState struct {
	Ready bool   // it accepts clients
	Hang  string // the parts of it that do not answer the agent; empty: all do
}

// GatewaySource is what a gateway-agent reports.
type GatewaySource struct {
	Table *tunnels.Table
	// State returns the state of Envoy, and a channel that is closed when it changes.
	State func() (GatewayState, <-chan struct{})
	// Ways returns the zone of the gateway, and the ways to the others; nil: it forwards no clients.
	Ways func() (zone string, to []*reportv1.Way)
	Dump Dump // writes what Envoy runs; nil: the question is rejected
	// Reopen is the wait before the stream is opened again; zero: report.Reopening.
	Reopen retry.Backoff
}

// SendGateway reports the table of a gateway until ctx ends, and applies denials to it. It begins when the table has
// read its tunnels.
func SendGateway(ctx context.Context, conn grpc.ClientConnInterface, from GatewaySource, log *slog.Logger) error {
	table, state := from.Table, from.State
	if _, version := table.Snapshot(); version == 0 {
		table.Changes(ctx, 0)
	}
	return report.Keep(ctx, reopening(from.Reopen), log, func(ctx context.Context, patient bool) error {
		stream, err := report.Open(report.KeepDenied(ctx), patient, reportv1.NewReportClient(conn).Gateway)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		send := oneByOne(stream.Send)
		answers := newAnswers(&answers{
			send:    func(a *reportv1.Answer) error { return send(&reportv1.GatewayReport{Answer: a}) },
			measure: table.Measure, ways: from.Ways, prove: table.Prove, dump: from.Dump,
			chunk: gatewayChunk, pace: gatewayInterval,
		})
		defer answers.wait()
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- <-receive(stream.Recv, func(orders *reportv1.GatewayOrders) {
				if denied := orders.GetDenied(); denied != nil {
					table.Deny(report.DeniedOf(denied))
				}
				answers.take(ctx, orders.GetQuestion())
			})
			cancel()
		}()
		var version uint64
		told, connected := map[model.EdgeRef]int{}, map[model.EdgeRef]int{}
		_, changed := state()
		for {
			wait, stop := until(ctx, changed)
			message, next := news(wait, table, version, log)
			stop()
			var now GatewayState
			now, changed = state()
			message.Ready, message.Hang = now.Ready, printable.Text(now.Hang, report.MaxText)
			message.Incomplete = printable.Text(table.Stats().Incomplete, report.MaxText)
			if message.GetSnapshot() {
				clear(told)
				clear(connected)
			}
			message.Connections = connections(table.Connections(), connected)
			message.Holes = unserved(table.UnservedWorkers(), told)
			if version = next; ctx.Err() != nil || send(message) != nil {
				return <-ended
			}
			_ = retry.Sleep(ctx, gatewayInterval) // the loop above detects its end
		}
	})
}

// reopening returns the wait before a stream is opened again.
func reopening(b retry.Backoff) retry.Backoff {
	if b == (retry.Backoff{}) {
		return report.Reopening
	}
	return b
}

// oneByOne serializes the sends of several goroutines on one stream.
func oneByOne[M any](send func(*M) error) func(*M) error {
	var mu sync.Mutex
	return func(m *M) error {
		mu.Lock()
		defer mu.Unlock()
		return send(m)
	}
}

// until returns a context that also ends when a channel is closed.
func until(ctx context.Context, closed <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-closed:
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// news waits for changes after a version and returns them with the next version; version 0 returns the whole table at
// once.
func news(ctx context.Context, table *tunnels.Table, version uint64, log *slog.Logger) (*reportv1.GatewayReport,
	uint64,
) {
	if version > 0 {
		if opened, closed, next, ok := table.Changes(ctx, version); ok {
			return &reportv1.GatewayReport{Tunnels: messages(opened), Closed: closed}, next
		}
	}
	all, next := table.Snapshot()
	if len(all) > report.MaxTunnels {
		log.Error("not all tunnels are reported", "tunnels", len(all), "reported", report.MaxTunnels)
	}
	return &reportv1.GatewayReport{Snapshot: true, Tunnels: messages(oldest(all))}, next
}

// oldest returns the tunnels that fit in a report. A gateway has more only while it closes the newest, which are beyond
// its limit, and each snapshot leaves out the same.
func oldest(all []tunnels.Tunnel) []tunnels.Tunnel {
	if len(all) <= report.MaxTunnels {
		return all
	}
	slices.SortFunc(all, func(a, b tunnels.Tunnel) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key))
	})
	return all[:report.MaxTunnels]
}

// unserved returns the entries that are new or have changed since told, with 0 workers for repaired edges, and updates
// told.
func unserved(all []tunnels.UnservedWorkers, told map[model.EdgeRef]int) (list []*reportv1.Hole) {
	add := func(ref model.EdgeRef, workers int) {
		list = append(list, &reportv1.Hole{Node: ref.Node, TunnelId: ref.ID, Workers: int32(workers)})
	}
	now := make(map[model.EdgeRef]bool, len(all))
	for _, e := range all[:min(len(all),
		report.MaxTunnels/2)] { // together with the closed ones they fit in one message
		now[e.EdgeRef] = true
		if told[e.EdgeRef] != e.Workers {
			told[e.EdgeRef] = e.Workers
			add(e.EdgeRef, e.Workers)
		}
	}
	for ref := range told {
		if !now[ref] {
			delete(told, ref)
			add(ref, 0)
		}
	}
	return list
}

// connections returns the counts that are new or have changed since told, with 0 for nodes without connections, and
// updates told.
func connections(all, told map[model.EdgeRef]int) (list []*reportv1.Connections) {
	add := func(ref model.EdgeRef, n int) {
		list = append(list, &reportv1.Connections{Node: ref.Node, TunnelId: ref.ID, Count: int32(n)})
	}
	for ref := range told {
		if all[ref] == 0 {
			delete(told, ref)
			add(ref, 0)
		}
	}
	for ref, n := range all {
		if n = min(n, report.MaxTunnels); told[ref] != n && len(list) < report.MaxTunnels {
			told[ref] = n
			add(ref, n)
		}
	}
	return list
}

func messages(all []tunnels.Tunnel) []*reportv1.Tunnel {
	list := make([]*reportv1.Tunnel, len(all))
	for i, t := range all {
		list[i] = &reportv1.Tunnel{
			Key: t.Key, Node: t.Node, TunnelId: t.ID, Worker: t.Worker,
			Since: timestamppb.New(t.Since),
		}
	}
	return list
}

// receive passes each message to take until the stream ends, and returns a channel that then receives the reason, once.
func receive[M any](recv func() (*M, error), take func(*M)) <-chan error {
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := recv()
			if err != nil {
				ended <- err
				return
			}
			take(m)
		}
	}()
	return ended
}

// pause waits. It returns early, with the reason, if the stream ends.
func pause(ended <-chan error, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return nil
	}
}
