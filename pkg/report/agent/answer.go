// Package agent is the agents' side of reports. Its input is the state of an edge or the table of a gateway; its output
// is the streams to an xds-server that report it, and the answers to the questions of that server. It uses neither
// Kubernetes nor Envoy's API.
package agent

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// Wanted is what a dump has.
type Wanted struct {
	Names []string // of resources; none: all
	Relay bool     // the state of the relay instead
}

// Dump writes {"configs": [...]}: the Envoy clusters and listeners of one stream in /config_dump. If the relay is
// wanted, it writes {"relay": "..."} instead: the state of what the stream's enrolment has received, as text.
type Dump func(ctx context.Context, what Wanted, to io.Writer) error

// See observes the apiserver of the stream's edge now.
type See func(ctx context.Context) (*reportv1.APIServer, error)

const (
	// edgeChunk and gatewayChunk are the size of one message of a dump, far below the limit of a hub.
	edgeChunk, gatewayChunk = 32 << 10, 256 << 10
	// tunnelsChunk is how many tunnels are in one message, of about 200 bytes each.
	tunnelsChunk = 20_000
)

// errUnknown answers a question of a newer hub.
var errUnknown = errors.New("this agent does not support the request")

// answers answers the questions to an agent, each in its own goroutine. It sends only through send.
type answers struct {
	send    func(*reportv1.Answer) error
	measure func(ids map[string]bool) ([]tunnels.Measured, error) // nil: there are no tunnels
	ways    func() (zone string, to []*reportv1.Way)              // with the tunnels; nil: there are none
	dump    Dump                                                  // nil: there is none
	see     See                                                   // nil: there is no apiserver to observe
	prove   func(context.Context, model.EdgeRef) tunnels.Proof    // nil: there are no tunnels
	chunk   int
	pace    time.Duration // between two chunks

	dumping sync.Mutex
	slots   chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex // guards closed
	closed  bool       // no answer may begin
}

func newAnswers(a *answers) *answers {
	a.slots = make(chan struct{}, report.MaxQuestions)
	return a
}

// take begins to answer a question. It drops a question beyond report.MaxQuestions, and any after wait.
func (a *answers) take(ctx context.Context, q *reportv1.Question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q == nil || a.closed {
		return
	}
	select {
	case a.slots <- struct{}{}:
	default:
		return
	}
	a.running.Go(func() {
		defer func() { <-a.slots }()
		last := &reportv1.Answer{Number: q.GetNumber(), Last: true}
		if err := a.answer(ctx, q); err != nil {
			last.Error = printable.Text(err.Error(), report.MaxText)
		}
		_ = a.send(last) // otherwise the stream has ended
	})
}

// wait blocks until all answers have ended. Their context must have ended before.
func (a *answers) wait() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}

func (a *answers) answer(ctx context.Context, q *reportv1.Question) error {
	switch {
	case q.GetTunnels() != nil && a.measure != nil:
		return a.answerTunnels(q)
	case q.GetDump() != nil && a.dump != nil:
		a.dumping.Lock() // an answer that the hub has abandoned may still be in progress
		defer a.dumping.Unlock()
		return a.answerDump(ctx, q)
	case q.GetProof() != nil && a.prove != nil:
		return a.answerProof(ctx, q)
	case q.GetLook() != nil && a.see != nil:
		return a.answerAPIServer(ctx, q)
	default:
		return errUnknown
	}
}

func (a *answers) answerTunnels(q *reportv1.Question) error {
	var ids map[string]bool
	for _, id := range q.GetTunnels().GetTunnelIds() {
		if ids == nil {
			ids = map[string]bool{}
		}
		ids[id] = true
	}
	all, err := a.measure(ids)
	if a.ways != nil {
		zone, to := a.ways()
		if err := a.send(&reportv1.Answer{Number: q.GetNumber(), Zone: zone, Ways: to}); err != nil {
			return err
		}
	}
	for len(all) > 0 {
		n := min(len(all), tunnelsChunk)
		part := &reportv1.Answer{Number: q.GetNumber()}
		for _, t := range all[:n] {
			part.Tunnels = append(part.Tunnels, &reportv1.MeasuredTunnel{
				Tunnel: &reportv1.Tunnel{
					Key: t.Key, Node: t.Node, TunnelId: t.ID, Worker: t.Worker,
					Since: timestamppb.New(t.Since),
				},
				RoundTripMicros: uint32(t.RTT.Microseconds()),
			})
		}
		if sendErr := a.send(part); sendErr != nil {
			return sendErr
		}
		all = all[n:]
	}
	return err
}

func (a *answers) answerAPIServer(ctx context.Context, q *reportv1.Question) error {
	seen, err := a.see(ctx)
	if err != nil {
		return err
	}
	return a.send(&reportv1.Answer{Number: q.GetNumber(), ApiServer: report.CleanAPIServer(seen)})
}

func (a *answers) answerDump(ctx context.Context, q *reportv1.Question) error {
	ctx, cancel := context.WithTimeout(ctx, report.DumpTime)
	defer cancel()
	to := &chunks{answers: a, ctx: ctx, number: q.GetNumber()}
	packed := gzip.NewWriter(to)
	if err := a.dump(ctx, Wanted{q.GetDump().GetNames(), q.GetDump().GetRelay()}, packed); err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return to.flush()
}

// chunks sends what is written to it.
type chunks struct {
	*answers
	ctx    context.Context //nolint:containedctx // io.Writer has no other way
	number uint64
	buffer []byte
	sent   bool
}

// Write implements io.Writer.
func (c *chunks) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), c.chunk-len(c.buffer))
		c.buffer = append(c.buffer, rest[:n]...)
		rest = rest[n:]
		if len(c.buffer) == c.chunk {
			if err := c.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

func (c *chunks) flush() error {
	if len(c.buffer) == 0 {
		return nil
	}
	if c.sent {
		if err := retry.Sleep(c.ctx, c.pace); err != nil {
			return err
		}
	}
	c.sent = true
	err := c.send(&reportv1.Answer{Number: c.number, Dump: c.buffer})
	c.buffer = nil // gRPC may still use it
	return err
}
