package report_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestEdgesProbeOnRequest has edges of one tunnel that observe, that cannot, that hang, and one whose version
// does not have this question.
func TestEdgesProbeOnRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	var looks atomic.Int32
	asked := make(chan struct{}, 1)
	all := map[string]agent.See{
		"edge-1": func(context.Context) (*reportv1.APIServer, error) {
			return &reportv1.APIServer{Address: "a:1", Message: fmt.Sprint("look\x00", looks.Add(1))}, nil
		},
		"edge-2": func(context.Context) (*reportv1.APIServer, error) { return nil, errors.New("there is none") },
		"edge-3": func(ctx context.Context) (*reportv1.APIServer, error) {
			select {
			case asked <- struct{}{}:
			default:
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"edge-4": nil,
	}
	for node, see := range all {
		s := edgeOf(node, idA)
		conn := w.Dial(t, &s, p.Address)
		background(t, func(ctx context.Context) error {
			return agent.SendEdge(ctx, conn, agent.EdgeSource{
				Reopen: quick.Reopen,
				Report: func() *reportv1.EdgeReport { return &reportv1.EdgeReport{Form: "Process"} }, See: see,
			}, w.Log)
		})
	}
	w.edge(t, edgeOf("edge-5", idB), p.Address)
	eventually.True(t, patience, "all edges report", func() error {
		if n := len(p.hub.Snapshot(t.Context(), nil, false).Edges); n != 5 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	began := time.Now()
	var second []hub.EdgeObservation
	var together sync.WaitGroup
	together.Go(func() { <-asked; second = p.hub.APIServer(t.Context(), idA) }) // while the first waits for edge-3
	first := p.hub.APIServer(t.Context(), idA)
	together.Wait()
	if took := time.Since(began); took > 12*time.Second {
		t.Errorf("it took %s", took)
	}
	for _, looks := range [][]hub.EdgeObservation{first, second} {
		var probes []string
		for _, l := range looks {
			probes = append(probes, fmt.Sprint(l.Node, " ", l.APIServer.GetAddress(), " ", l.Problem))
		}
		got := strings.Join(probes, "\n")
		for i, want := range []string{
			"edge-1 a:1 <nil>", "there is none", "has not answered in time",
			"does not support the request",
		} {
			if len(looks) != 4 || !strings.Contains(probes[i], want) {
				t.Fatalf("%q is not in\n%s", want, got)
			}
		}
	}
	if first[0].APIServer.GetMessage() != "look 1" {
		t.Errorf("got %q", first[0].APIServer.GetMessage())
	}
	if none := p.hub.APIServer(t.Context(), strings.Repeat("c", 24)); len(none) != 0 {
		t.Errorf("of a tunnel without edges: %+v", none)
	}
}
