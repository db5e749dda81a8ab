package report_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/reporttest"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	"github.com/fairlead/fairlead/pkg/report/agent"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestEveryMethodIsForOneRole(t *testing.T) {
	w := newWorld(t)
	p := w.place(t)
	subjects := map[string]*model.Subject{"a client without a certificate": nil}
	for _, s := range []model.Subject{
		edgeOf("edge-1", idA), gatewayOf("gateway-0"), model.ControlSubject(),
		model.ControllerSubject(),
	} {
		subjects[string(s.Role)] = &s
	}
	for name, s := range subjects {
		conn := w.Dial(t, s, p.Address)
		client := reportv1.NewReportClient(conn)
		for method, role := range map[string]model.Role{
			"Edge": model.RoleEdge, "Gateway": model.RoleGateway,
			"Peers": model.RoleGateway, "Watch": model.RoleController,
		} {
			t.Run(fmt.Sprintf("%s calls %s", name, method), func(t *testing.T) {
				if s != nil && s.Role == role {
					return // every other test
				}
				want := codes.PermissionDenied
				if s == nil {
					want = codes.Unauthenticated
				}
				var got codes.Code
				switch method {
				case "Edge":
					stream, err := client.Edge(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					got = reporttest.Code(t, stream.Recv)
				case "Gateway":
					stream, err := client.Gateway(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					got = reporttest.Code(t, stream.Recv)
				case "Peers":
					_, err := client.Peers(t.Context(), &reportv1.PeersRequest{})
					got = status.Code(err)
				case "Watch":
					stream, err := client.Watch(t.Context(), &reportv1.WatchRequest{})
					if err != nil {
						t.Fatal(err)
					}
					got = reporttest.Code(t, stream.Recv)
				}
				if got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		}
	}
	t.Run("an edge whose leaf has expired", func(t *testing.T) {
		identity := w.Identity(t, edgeOf("edge-1", idA), time.Now().Add(-time.Minute))
		stream, err := reportv1.NewReportClient(w.DialAs(t, &identity, p.Address)).Edge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := reporttest.Code(t, stream.Recv); got != codes.Unauthenticated {
			t.Errorf("got %s", got)
		}
	})
}

func TestMalformedReportsAreRejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	good := func() *reportv1.Tunnel {
		return &reportv1.Tunnel{Key: "198.51.100.1:1>192.0.2.1:1", Node: "edge-1", TunnelId: idA}
	}
	with := func(change func(*reportv1.Tunnel)) *reportv1.GatewayReport {
		tunnel := good()
		change(tunnel)
		return &reportv1.GatewayReport{Snapshot: true, Tunnels: []*reportv1.Tunnel{good(), tunnel}}
	}
	gateways := map[string]*reportv1.GatewayReport{
		"the first report is no snapshot": {Tunnels: []*reportv1.Tunnel{good()}},
		"a tunnel without a key":          with(func(t *reportv1.Tunnel) { t.Key = "" }),
		"a key that is too long":          with(func(t *reportv1.Tunnel) { t.Key = strings.Repeat("x", report.MaxKey+1) }),
		"a key that can't be printed":     with(func(t *reportv1.Tunnel) { t.Key = "a\nb" }),
		"a node name that is none":        with(func(t *reportv1.Tunnel) { t.Node = "CN=edge-1" }),
		"a tunnel id that is none":        with(func(t *reportv1.Tunnel) { t.TunnelId = "c1" }),
		"a closed key that is none":       {Snapshot: true, Closed: []string{""}},
		"a worker without a tunnel of an invalid edge": {
			Snapshot: true,
			Holes:    []*reportv1.Hole{{Node: "edge-1", TunnelId: "c1", Workers: 1}},
		},
		"connections of an invalid node": {
			Snapshot:    true,
			Connections: []*reportv1.Connections{{Node: "CN=kas-1", TunnelId: idA, Count: 1}},
		},
		"a negative number of connections": {
			Snapshot:    true,
			Connections: []*reportv1.Connections{{Node: "kas-1", TunnelId: idA, Count: -1}},
		},
		"a negative number of workers without a tunnel": {
			Snapshot: true,
			Holes:    []*reportv1.Hole{{Node: "edge-1", TunnelId: idA, Workers: -1}},
		},
		"too many tunnels": {Snapshot: true, Closed: make([]string, report.MaxTunnels+1)},
	}
	s := gatewayOf("gateway-0")
	client := reportv1.NewReportClient(w.Dial(t, &s, p.Address))
	for name, message := range gateways {
		t.Run(name, func(t *testing.T) {
			stream, err := client.Gateway(t.Context())
			if err == nil {
				err = stream.Send(message)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := reporttest.Code(t, stream.Recv); got != codes.InvalidArgument {
				t.Errorf("got %s", got)
			}
		})
	}
	edges := map[string]*reportv1.EdgeReport{
		"a report that is too large": {LastError: strings.Repeat("x", report.MaxReport)},
		"a time that is none": {
			ApiServer: &reportv1.APIServer{CertificateNotAfter: &timestamppb.Timestamp{Nanos: -1}},
		},
	}
	s = edgeOf("edge-1", idA)
	client = reportv1.NewReportClient(w.Dial(t, &s, p.Address))
	for name, message := range edges {
		t.Run(name, func(t *testing.T) {
			stream, err := client.Edge(t.Context())
			if err == nil {
				err = stream.Send(message)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := reporttest.Code(t, stream.Recv); got != codes.InvalidArgument {
				t.Errorf("got %s", got)
			}
		})
	}
	if look := p.hub.Snapshot(t.Context(), nil, false); len(look.Gateways)+len(look.Edges) != 0 {
		t.Errorf("something of it is remembered: %+v", look)
	}
}

func TestAnEdgeReportsOnlyChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	s := edgeOf("edge-1", idA)
	conn := w.Dial(t, &s, p.Address)
	trouble := make(chan string, 1)
	trouble <- ""
	changed := make(chan struct{}, 1)
	last := ""
	background(t, func(ctx context.Context) error {
		return agent.SendEdge(ctx, conn, agent.EdgeSource{
			Reopen: quick.Reopen, Changed: changed,
			Report: func() *reportv1.EdgeReport {
				select {
				case last = <-trouble:
				default:
				}
				return &reportv1.EdgeReport{Version: "v1\x00", LastError: last, ApiServer: &reportv1.APIServer{
					Healthy: true, CertificateNames: []string{"kubernetes", "a b", ""}, CertificateNotAfter: timestamppb.New(start),
				}}
			},
		}, w.Log)
	})
	v.shows(t, idA, "known ; edge-1+")
	r := v.Tunnel(idA).Edges[0].Report
	if r.GetVersion() != "v1 " || !r.GetApiServer().GetHealthy() ||
		strings.Join(r.GetApiServer().GetCertificateNames(), ",") != "kubernetes" ||
		!r.GetApiServer().GetCertificateNotAfter().AsTime().Equal(start) {
		t.Errorf("got %v", r)
	}
	trouble <- strings.Repeat("ä", report.MaxText)
	changed <- struct{}{}
	eventually.True(t, patience, "the trouble is known", func() error {
		if got := v.Tunnel(idA).Edges[0].Report.GetLastError(); got != strings.Repeat("ä", report.MaxText/2) {
			return fmt.Errorf("got %d bytes", len(got))
		}
		return nil
	})
}

func TestAGatewayReceivesTheDeniedEdges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	s := gatewayOf("gateway-0")
	stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Gateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := []model.EdgeRef{{Node: "edge-1", ID: idA}}
	for _, want := range []model.Denied{
		{},
		{Edges: one},
		{Edges: append(one, model.EdgeRef{Node: "edge-2", ID: idB}), IDs: []string{idB}},
		{},
	} {
		if len(want.Edges)+len(want.IDs) > 0 {
			w.Rules.Set(want, false)
		}
		orders, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, report.DeniedOf(orders.GetDenied()), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		if len(want.IDs) > 0 {
			w.Rules.Set(model.Denied{}, false)
		}
	}
}

// TestGatewaysGetNoDenialsThatTheyHave: a change may concern edges that are not in the list.
func TestGatewaysGetNoDenialsThatTheyHave(t *testing.T) {
	denied := model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}, IDs: []string{idB}}
	w := newWorld(t)
	w.Rules.Set(denied, false)
	p := w.place(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := gatewayOf("gateway-0")
	stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Gateway(report.KeepDenied(ctx))
	if err == nil {
		err = stream.Send(&reportv1.GatewayReport{Snapshot: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0} {
		orders, err := stream.Recv()
		if err != nil || orders.GetDenied() == nil || len(orders.GetDenied().GetEdges()) != want {
			t.Fatalf("message %d is %v: %v", i, orders, err)
		}
		if i == 0 {
			for range 3 { // each may be noticed by itself
				w.Rules.Set(denied, false)
				_ = retry.Sleep(ctx, 20*time.Millisecond)
			}
			w.Rules.Set(model.Denied{}, false)
		}
	}
}

// TestAQuestionDoesNotRepeatTheDenials, which may be megabytes. An agent of an earlier version needs them in each
// message.
func TestAQuestionDoesNotRepeatTheDenials(t *testing.T) {
	edge := model.EdgeRef{Node: "edge-1", ID: idA}
	for name, keeps := range map[string]bool{"of this version": true, "of an earlier version": false} {
		t.Run("an agent "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Rules.Set(model.Denied{Edges: []model.EdgeRef{edge}}, false)
			p := w.place(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if keeps {
				ctx = report.KeepDenied(ctx)
			}
			s := gatewayOf("gateway-0")
			stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Gateway(ctx)
			if err == nil {
				err = stream.Send(&reportv1.GatewayReport{Snapshot: true})
			}
			if err != nil {
				t.Fatal(err)
			}
			receive := func() *reportv1.GatewayOrders {
				t.Helper()
				orders, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				return orders
			}
			if n := len(receive().GetDenied().GetEdges()); n != 1 {
				t.Errorf("the first message denies %d edges", n)
			}
			background(t, func(ctx context.Context) error {
				for ctx.Err() == nil { // until it has reported, there is none to ask
					p.hub.Prove(ctx, edge)
					_ = retry.Sleep(ctx, 10*time.Millisecond)
				}
				return nil
			})
			question := receive()
			if question.GetQuestion() == nil || (question.GetDenied() == nil) != keeps {
				t.Errorf("the second message is %v", question)
			}
			w.Rules.Set(model.Denied{}, false)
			for { // there may be another question before
				if orders := receive(); orders.GetDenied() != nil && len(orders.GetDenied().GetEdges()) == 0 {
					break
				}
			}
		})
	}
}

func TestAQuestionChangesNoDenials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	edge := model.EdgeRef{Node: "edge-1", ID: idA}
	w.Rules.Set(model.Denied{Edges: []model.EdgeRef{edge}}, false)
	p := w.place(t)
	g := w.gateway(t, "gateway-0", p.Address)
	eventually.True(t, patience, "the gateway answers", func() error {
		if proofs := p.hub.Prove(t.Context(), edge); len(proofs) != 1 || proofs[0].Proof == nil {
			return fmt.Errorf("the answers are %v", proofs)
		}
		return nil
	})
	if !g.Denied(edge) {
		t.Error("after a question it denies nothing")
	}
	w.Rules.Set(model.Denied{}, false)
	eventually.True(t, patience, "it denies nothing any more", func() error {
		if g.Denied(edge) {
			return errors.New("the edge is denied")
		}
		return nil
	})
}

func TestTheNewestStreamCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	s := gatewayOf("gateway-0")
	open := func(node string) func() (*reportv1.GatewayOrders, error) {
		stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Gateway(t.Context())
		if err == nil {
			err = stream.Send(&reportv1.GatewayReport{
				Snapshot: true,
				Tunnels:  []*reportv1.Tunnel{{Key: "a", Node: node, TunnelId: idA}},
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream.Recv
	}
	old := open("edge-1")
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=1")
	open("edge-2")
	if got := reporttest.Code(t, old); got != codes.Aborted {
		t.Errorf("the old stream ends with %s", got)
	}
	v.shows(t, idA, "known gateway-0; edge-2 gateway-0=1")
	v.mu.Lock()
	received := v.ids[""]
	v.mu.Unlock()
	if received != 2 { // when the gateway connected, and when all was known
		t.Errorf("%d times all tunnels were said to have changed", received)
	}
}

func TestReportsAreRateLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	s := gatewayOf("gateway-0")
	stream, err := reportv1.NewReportClient(w.Dial(t, &s, p.Address)).Gateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 1)
	go func() {
		n := 0
		for message := (&reportv1.GatewayReport{
			Snapshot: true,
			Closed:   []string{strings.Repeat("x", report.MaxKey)},
		}); n < 1e6; n++ {
			if stream.Send(message) != nil {
				break
			}
		}
		sent <- n
	}()
	v.shows(t, idA, "known gateway-0")
	stop := p.Stop
	stop()
	// The window of HTTP/2 is 64 KiB, in addition to the buffers of the kernel and of gRPC.
	if n := <-sent; n > 50_000 {
		t.Errorf("%d messages were taken in a moment", n)
	}
}
