package report_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/report"
	"github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestAGatewayAnswersForItsTunnels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Rules.SetGateways("gateway-0", "gateway-1")
	p := w.place(t)
	g := w.gateway(t, "gateway-0", p.Address)
	g.eventOf(t, 1, "tunnel_setup", 1000, "edge-1", idA)
	g.opens(t, 1001, "edge-2", idB)
	var look hub.Snapshot
	eventually.True(t, patience, "the gateway answers", func() error {
		look = p.hub.Snapshot(t.Context(), nil, true)
		if one := find(look, "gateway-0"); one == nil || len(one.Tunnels) != 2 || one.Problem != nil {
			return errors.New("it does not")
		}
		return nil
	})
	one := find(look, "gateway-0")
	i := slices.IndexFunc(one.Tunnels, func(m *reportv1.MeasuredTunnel) bool {
		return m.GetTunnel().GetNode() == "edge-1"
	})
	if !one.Installed || !one.Connected || i < 0 || one.Tunnels[i].GetTunnel().GetWorker() != "worker_1" ||
		one.Tunnels[i].GetTunnel().GetSince().AsTime().Year() != 2026 {
		t.Errorf("got %+v", one)
	}
	if other := find(look, "gateway-1"); other == nil || other.Connected || !other.Since.IsZero() || !other.Installed {
		t.Errorf("of a gateway that has never reported: %+v", other)
	}
	if some := find(p.hub.Snapshot(t.Context(), []string{idB}, true), "gateway-0"); len(some.Tunnels) != 1 ||
		some.Tunnels[0].GetTunnel().GetTunnelId() != idB {
		t.Errorf("of one id: %v", some.Tunnels)
	}
}

func TestAGatewayWithoutAnAnswerIsReportedWithoutDetails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	s := gatewayOf("gateway-0")
	stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Gateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := &reportv1.GatewayReport{
		Snapshot: true,
		Tunnels:  []*reportv1.Tunnel{{Key: "a", Node: "edge-1", TunnelId: idA}},
	}
	if err := stream.Send(first); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, patience, "it is there", func() error {
		if one := find(p.hub.Snapshot(t.Context(), nil, false), "gateway-0"); one == nil || len(one.Tunnels) != 1 {
			return errors.New("it is not")
		}
		return nil
	})
	began := time.Now()
	one := find(p.hub.Snapshot(t.Context(), nil, true), "gateway-0")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if len(one.Tunnels) != 1 || one.Problem == nil || one.Tunnels[0].GetTunnel().GetWorker() != "" {
		t.Errorf("got %+v", one)
	}
	// It is not abandoned for good: later answers count, and late ones are dropped.
	if err := stream.Send(&reportv1.GatewayReport{Answer: &reportv1.Answer{Number: 1, Last: true}}); err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reportv1.GatewayReport{
		Tunnels: []*reportv1.Tunnel{{Key: "b", Node: "edge-1", TunnelId: idA}},
		Ready:   true,
	}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, patience, "the answer is longer", func() error {
		if one := find(p.hub.Snapshot(t.Context(), nil, false), "gateway-0"); len(one.Tunnels) != 2 || !one.Ready {
			return errors.New("it does not")
		}
		return nil
	})
}

func find(l hub.Snapshot, gateway string) *hub.GatewaySnapshot {
	i := slices.IndexFunc(l.Gateways, func(g hub.GatewaySnapshot) bool { return g.Name == gateway })
	if i < 0 {
		return nil
	}
	return &l.Gateways[i]
}

// dumper is an edge whose Envoy runs something.
func (w *world) dumper(t *testing.T, p *place, node string, dump agent.Dump) {
	t.Helper()
	s := edgeOf(node, idA)
	conn := w.Dial(t, &s, p.Address)
	background(t, func(ctx context.Context) error {
		return agent.SendEdge(ctx, conn, agent.EdgeSource{
			Reopen: quick.Reopen,
			Report: func() *reportv1.EdgeReport { return &reportv1.EdgeReport{} }, Dump: dump,
		}, w.Log)
	})
	eventually.True(t, patience, "the edge reports", func() error {
		if !slices.ContainsFunc(p.hub.Snapshot(t.Context(), nil, false).Edges,
			func(e *reportv1.EdgeState) bool { return e.GetNode() == node && e.GetConnected() }) {
			return errors.New("it does not")
		}
		return nil
	})
}

func TestAnAgentReportsTheConfigurationOfItsEnvoy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	// Incompressible, so that it arrives in several parts.
	big := make([]byte, 96<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(big) // never an error
	w.dumper(t, p, "edge-1", func(_ context.Context, what agent.Wanted, to io.Writer) error {
		if what.Relay {
			_, err := io.WriteString(to, "the relay")
			return err
		}
		if _, err := io.WriteString(to, strings.Join(what.Names, ",")); err != nil {
			return err
		}
		_, err := to.Write(big)
		return err
	})
	w.dumper(t, p, "edge-2", func(context.Context, agent.Wanted, io.Writer) error {
		return errors.New("its Envoy\x00 does not run")
	})
	var got bytes.Buffer
	parts := 0
	write := func(part []byte) error {
		parts++
		_, err := got.Write(part)
		return err
	}
	named := &reportv1.DumpQuestion{Names: []string{"a", "b"}}
	if err := p.hub.Dump(t.Context(), "edge-1", named, write); err != nil || parts < 3 {
		t.Fatalf("%d parts, %v", parts, err)
	}
	unpack := func(want string) {
		t.Helper()
		unpacked, err := gzip.NewReader(&got)
		if err != nil {
			t.Fatal(err)
		}
		if all, err := io.ReadAll(unpacked); err != nil || string(all) != want {
			t.Errorf("got %d bytes, %v", len(all), err)
		}
	}
	unpack("a,b" + string(big))
	if err := p.hub.Dump(t.Context(), "edge-1", &reportv1.DumpQuestion{Relay: true}, write); err != nil {
		t.Fatal(err)
	}
	unpack("the relay")
	none := func([]byte) error { return nil }
	if err := p.hub.Dump(t.Context(), "edge-2", &reportv1.DumpQuestion{}, none); err == nil ||
		!strings.Contains(err.Error(), "its Envoy  does not run") {
		t.Errorf("got %v", err)
	}
	if err := p.hub.Dump(t.Context(), "edge-3", &reportv1.DumpQuestion{}, none); status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}

// An edge that sends far more than permitted spoils only its own answer.
func TestAnAnswerIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	s := edgeOf("edge-1", idA)
	stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Edge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reportv1.EdgeReport{Form: "Process"}); err != nil {
		t.Fatal(err)
	}
	go func() {
		orders, err := stream.Recv()
		for err == nil {
			err = stream.Send(&reportv1.EdgeReport{Answer: &reportv1.Answer{
				Number: orders.GetQuestion().GetNumber(),
				Dump:   make([]byte, report.MaxReport-100),
			}})
		}
	}()
	eventually.True(t, patience, "the edge reports", func() error {
		err := p.hub.Dump(t.Context(), "edge-1", &reportv1.DumpQuestion{}, func([]byte) error { return nil })
		if status.Code(err) != codes.ResourceExhausted {
			return err
		}
		return nil
	})
	if look := p.hub.Snapshot(t.Context(), nil, false); len(look.Edges) != 1 || !look.Edges[0].GetConnected() ||
		look.Edges[0].GetReport().GetForm() != "Process" {
		t.Errorf("got %v", look.Edges)
	}
}
