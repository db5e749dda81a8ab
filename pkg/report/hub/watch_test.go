package hub

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestASlowWatcherUsesNoAdditionalMemory has a watcher that does not read while everything changes many times.
func TestASlowWatcherUsesNoAdditionalMemory(t *testing.T) {
	w := newWorld(t)
	p := newPlace(t, w)
	controller := model.ControllerSubject()
	stream, err := reportv1.NewReportClient(w.Dial(t, &controller, p.Address)).Watch(t.Context(), &reportv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	h := p.hub
	s := &session{subject: gatewayOf("gateway-0"), end: func(error) {}}
	h.begin(s)
	eventually.True(t, patience, "there is a watcher", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.watchers) != 1 {
			return fmt.Errorf("%d watch", len(h.watchers))
		}
		return nil
	})
	const edges, rounds = 2000, 20
	for round := range rounds {
		if err := h.gatewayReport(s, snapshot(edges, 1+round%2+rounds*(round/(rounds-1)))); err != nil {
			t.Fatal(err)
		}
	}
	h.mu.Lock()
	for watcher := range h.watchers {
		if len(watcher.dirty) > edges+1 {
			t.Errorf("%d changes are kept", len(watcher.dirty))
		}
	}
	h.mu.Unlock()
	counts, messages := map[string]int32{}, 0
	for want := int32(1 + (rounds-1)%2 + rounds); ; messages++ {
		change, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if c := change.GetTunnels(); c != nil {
			counts[c.GetNode()] = c.GetCount()
		}
		done := len(counts) == edges
		for _, n := range counts {
			done = done && n == want
		}
		if done {
			break
		}
	}
	if messages > edges*rounds/2 {
		t.Errorf("%d messages for %d changes: they are not joined", messages, edges*rounds)
	}
}

// snapshot returns a gateway's report of some edges with some tunnels each.
func snapshot(edges, each int) *reportv1.GatewayReport {
	r := &reportv1.GatewayReport{Snapshot: true}
	for i := range edges {
		for j := range each {
			r.Tunnels = append(r.Tunnels, &reportv1.Tunnel{
				Key: fmt.Sprintf("198.51.100.1:%d>192.0.2.%d:443", i, j), Node: fmt.Sprintf("edge-%d", i),
				TunnelId: fmt.Sprintf("%024d", i%5000),
			})
		}
	}
	return r
}

func TestTheNumberOfWatchersIsBounded(t *testing.T) {
	h := New(domain, newRules(), newWorld(t).Log)
	for i := range maxWatchers + 1 {
		if _, _, err := h.addWatcher(); (err != nil) != (i == maxWatchers) {
			t.Errorf("watcher %d: %v", i, err)
		}
	}
}

func TestTheHubRemovesOldReports(t *testing.T) {
	now := start
	h := New(domain, newRules(), newWorld(t).Log)
	h.now = func() time.Time { return now }
	come := func(node string) *session {
		s := &session{subject: edgeOf(node, idA), end: func(error) {}}
		h.begin(s)
		if err := h.edgeReport(s, &reportv1.EdgeReport{}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	h.finish(come("edge-1"))
	now = now.Add(report.DefaultTimes.Keep)
	come("edge-2")
	if len(h.edges) != 2 {
		t.Errorf("%d edges are remembered, want both", len(h.edges))
	}
	now = now.Add(report.DefaultTimes.Keep / 60)
	come("edge-3")
	if h.edges[pair{"edge-1", idA}] != nil || len(h.edges) != 2 {
		t.Errorf("%d edges are remembered, want those that are there", len(h.edges))
	}
	if !forget(map[int]presence{1: {connected: true, since: start}, 2: {since: start}},
		func(p presence) presence { return p }) {
		t.Error("nobody was forgotten")
	}
	if forget(map[int]presence{1: {connected: true, since: start}}, func(p presence) presence { return p }) {
		t.Error("somebody was forgotten who is there")
	}
}

// FuzzReports feeds a hub with arbitrary reports of a gateway and an edge. An accepted report must be well-formed, and
// the counts must match the tunnels.
func FuzzReports(f *testing.F) {
	seed := func(gateway *reportv1.GatewayReport, edge *reportv1.EdgeReport) {
		a, _ := proto.Marshal(gateway)
		b, _ := proto.Marshal(edge)
		f.Add(a, a, b)
	}
	seed(snapshot(3, 2), &reportv1.EdgeReport{
		Form:      "Process",
		ApiServer: &reportv1.APIServer{CertificateNames: []string{"kubernetes"}},
	})
	seed(&reportv1.GatewayReport{Closed: []string{"198.51.100.1:0>192.0.2.0:443"}},
		&reportv1.EdgeReport{LastError: "\x00\u202e"})
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, first, second, edge []byte) {
		h := New(domain, newRules(), w.Log)
		g := &session{subject: gatewayOf("gateway-0"), end: func(error) {}}
		e := &session{subject: edgeOf("edge-1", idA), end: func(error) {}}
		h.begin(g)
		h.begin(e)
		watcher, _, _ := h.addWatcher()
		for _, data := range [][]byte{first, second} {
			var r reportv1.GatewayReport
			if proto.Unmarshal(data, &r) == nil {
				_ = h.gatewayReport(g, &r)
			}
		}
		var r reportv1.EdgeReport
		if proto.Unmarshal(edge, &r) == nil {
			_ = h.edgeReport(e, &r)
		}
		for _, state := range h.gateways {
			counts := map[pair]int{}
			for key, p := range state.tunnels {
				if !report.IsWord(key, report.MaxKey) || model.ValidateNodeName(p.node) != nil || model.ValidateID(p.id) != nil {
					t.Errorf("a tunnel of no form: %q, %+v", key, p)
				}
				counts[p]++
			}
			for p, c := range state.counts {
				if counts[p] != c.n || c.without < 0 || c.without > report.MaxWorkers {
					t.Errorf("counted %+v, want %v", state.counts, counts)
				}
				delete(counts, p)
			}
			if len(counts) > 0 {
				t.Errorf("not counted were %v", counts)
			}
		}
		for change := range h.take(watcher).messages() {
			if size := proto.Size(change); size > 32<<10 {
				t.Errorf("a change has %d bytes", size)
			}
		}
	})
}
