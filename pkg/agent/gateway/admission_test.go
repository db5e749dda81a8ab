package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/conntest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/outcomes"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

func newTestAdmissions(t *testing.T, dir string, workers int) *admissions {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r, err := xdsproxy.New(t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	deps := Deps{StateDir: dir, Workers: workers, Log: log, MaxTunnels: 25_000}
	tenants := newReachability(r, nil, envoyadmin.Client{}, unmeasured(), log)
	return newAdmissions(Config{Domain: domain}, deps, tenants, nil)
}

func TestTunnelsOfAnEdgeFollowWorkersAndNames(t *testing.T) {
	a := newTestAdmissions(t, t.TempDir(), 4)
	one, more := model.NewID(), model.NewID()
	a.setNames(map[string]int{domain.TunnelID(one): 1, domain.TunnelID(more): 3, "no tunnel": 7})
	for id, want := range map[string]int{one: 2 * 4, more: 2 * 4 * 4, "unknown": 2 * 4} {
		if got := a.tunnels(id); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
	a.lanes = 3
	for id, want := range map[string]int{one: (2 + 16) * 4, more: (2*4 + 16) * 4} {
		if got := a.tunnels(id); got != want {
			t.Errorf("with lanes %d, want %d", got, want)
		}
	}
	a.lanes = 0
	for id, want := range map[string]int{one: 2 * 4, more: 2 * 4 * 4} {
		if got := a.tunnels(id); got != want {
			t.Errorf("without lanes %d, want %d", got, want)
		}
	}
	// With fewer names, an edge may keep its earlier number of tunnels.
	a.setNames(map[string]int{domain.TunnelID(more): 2})
	if got := a.tunnels(more); got != 2*4*4 {
		t.Errorf("at once it may have %d", got)
	}
	a.quotas[more] = quota{a.quotas[more].tunnels, time.Now().Add(-time.Second)}
	a.setNames(map[string]int{domain.TunnelID(more): 2})
	a.setNames(map[string]int{domain.TunnelID(more): 2})
	if got := a.tunnels(more); got != 2*4*2 {
		t.Errorf("later it may have %d", got)
	}
}

// TestTheAgentChangesListeners: the public one gets the filters of admission, and those that know the workload cluster
// of each client get counters. The port for CONNECT has another listener behind it, which counts.
func TestTheAgentChangesListeners(t *testing.T) {
	a := newTestAdmissions(t, t.TempDir(), 1)
	at := model.Endpoint{Host: "127.0.0.1", Port: 1}
	inst := model.Installation{Domain: domain, Public: at, Control: at, Gateways: []model.Gateway{{Name: name}}}
	for _, l := range envoy.GatewayListeners(inst, name, envoy.GatewayBind{Public: at, APIServer: at, Connect: at},
		model.Denied{}) {
		packed, err := anypb.New(l)
		if err != nil {
			t.Fatal(err)
		}
		with := a.Apply(l.GetName(), a.Form(l.GetName()), packed)
		if l.GetName() == "connect" {
			if string(with.GetValue()) != string(packed.GetValue()) || a.Form(l.GetName()) != "" {
				t.Errorf("listener %s is changed, in the form %q", l.GetName(), a.Form(l.GetName()))
			}
			continue
		}
		want, isPublic := envoy.AddAdmission(packed)
		if !isPublic {
			want, _ = outcomes.Count(packed)
		}
		if string(with.GetValue()) == string(packed.GetValue()) || string(with.GetValue()) != string(want.GetValue()) ||
			a.Form(l.GetName()) == "" {
			t.Errorf("listener %s is not changed as it should be, in the form %q", l.GetName(), a.Form(l.GetName()))
		}
	}
}

// TestAnAdoptedEnvoyKeepsTheLimits: the agent that starts beside a running Envoy checks the listener that this one has,
// and sends it nothing.
func TestAnAdoptedEnvoyKeepsTheLimits(t *testing.T) {
	a := newTestAdmissions(t, t.TempDir(), 1)
	at := model.Endpoint{Host: "127.0.0.1", Port: 1}
	bind := envoy.GatewayBind{Public: at, APIServer: at, Connect: at, Version: envoy.Current}
	g := &Gateway{config: &Config{Domain: domain, Name: name, Bind: bind}, tenants: a.tenants, admissions: a}
	check := g.Role(nil).Check(model.Subject{Role: model.RoleGateway, Node: name})
	loaded := func(lanes int) {
		t.Helper()
		inst := model.Installation{
			Domain: domain, Public: at, Control: at, Lanes: lanes, Gateways: []model.Gateway{{Name: name}},
		}
		for _, l := range envoy.GatewayListeners(inst, name, bind, model.Denied{}) {
			if err := check("", packed(t, l)); err != nil {
				t.Fatal(err)
			}
		}
	}
	id, usual := model.NewID(), model.TunnelsPerEdge(1, 1)
	loaded(3)
	if got, want := a.tunnels(id), usual+model.TunnelsInLanes(3); got != want {
		t.Errorf("an edge may have %d tunnels, want %d", got, want)
	}
	loaded(1)
	if got, want := a.tunnels(id), usual+model.TunnelsInLanes(3); got != want {
		t.Errorf("an edge that still has its lanes may have %d tunnels, want %d", got, want)
	}
	a.moreLanes.until = time.Now().Add(-time.Second)
	if got, want := a.tunnels(id), usual+model.TunnelsInLanes(1); got != want {
		t.Errorf("later an edge may have %d tunnels, want %d", got, want)
	}
}

// TestOtherGatewaysAreKnown: a gateway that forwards clients opens a connection for each workload cluster.
func TestOtherGatewaysAreKnown(t *testing.T) {
	a := newTestAdmissions(t, t.TempDir(), 1)
	now, from := time.Now(), netip.MustParseAddr("192.0.2.1")
	a.notePeers([]tunnels.Placed{{Tunnel: tunnels.Tunnel{Node: "gateway-1"}, From: from, Owner: record.OwnerPeer}})
	admitted := 0
	for second := range 4 { // the rate of all connections permits 1,000 per second
		for range 600 {
			if a.control.Connection(now.Add(time.Duration(second)*time.Second), from, admission.Relayed) == "" {
				admitted++
			}
		}
	}
	if admitted != 4*600 {
		t.Errorf("%d of 2,400 connections are admitted", admitted)
	}
}

func TestKnownSourcesSurviveAnAgent(t *testing.T) {
	dir, from := t.TempDir(), netip.MustParseAddr("192.0.2.1")
	a := newTestAdmissions(t, dir, 1)
	a.control.Note(time.Now(), from, model.EdgeRef{Node: "edge-a", ID: model.NewID()}, 2)
	a.save(false)
	next := newTestAdmissions(t, dir, 1)
	if next.control.Weight(time.Now(), admission.Source(from)) == 0 {
		t.Error("the next agent does not know it")
	}
}

func TestKnownSourcesAreSavedAgain(t *testing.T) {
	dir := t.TempDir()
	a := newTestAdmissions(t, dir, 1)
	saved := func() bool {
		_, err := os.Stat(a.knownPath())
		return err == nil && os.Remove(a.knownPath()) == nil
	}
	a.control.Note(time.Now(), netip.MustParseAddr("192.0.2.1"), model.EdgeRef{Node: "edge-a", ID: model.NewID()}, 2)
	if a.save(false); !saved() {
		t.Error("a new source is not saved")
	}
	if a.save(false); saved() {
		t.Error("nothing has changed, and it is saved")
	}
	a.saved = time.Now().Add(-saveAgain)
	if a.save(false); !saved() {
		t.Error("an old file is not saved again")
	}
	a.control.Note(time.Now(), netip.MustParseAddr("192.0.2.2"), model.EdgeRef{Node: "edge-b", ID: model.NewID()}, 2)
	if err := os.MkdirAll(filepath.Join(a.knownPath(), "blocked"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.save(false)
	if err := os.RemoveAll(a.knownPath()); err != nil {
		t.Fatal(err)
	}
	if a.save(false); !saved() {
		t.Error("after an error it is not saved")
	}
}

// TestConnectionsOfApiserversAreBoundedAndKnown: an apiserver without its own Envoy has a connection for each stream.
func TestConnectionsOfApiserversAreBoundedAndKnown(t *testing.T) {
	a := newTestAdmissions(t, t.TempDir(), 1)
	id, now := model.NewID(), time.Now()
	of := func(n int, owner, node, from string) (all []tunnels.Placed) {
		for i := range n {
			all = append(all, tunnels.Placed{
				Tunnel: tunnels.Tunnel{Key: fmt.Sprint(node, i), Node: node, ID: id, Since: now.Add(time.Duration(i))},
				From:   netip.MustParseAddr(from), Owner: owner,
			})
		}
		return all
	}
	most := a.control.StreamLimits(model.RoleEgress).Node
	all := of(most+3, record.OwnerEgress, "kas-1", "192.0.2.1")
	all = append(all, of(most-3, record.OwnerEgress, "kas-2", "192.0.2.2")...)
	all = append(all, of(1, record.OwnerForward, "edge-1", "192.0.2.3")...)
	keys := a.excessConnections(all)
	if len(keys) != 3 || keys[0] != fmt.Sprint("kas-1", most+2) {
		t.Errorf("beyond the limit are %v", keys)
	}
	for from, want := range map[string]bool{"192.0.2.1": true, "192.0.2.2": true, "192.0.2.3": false} {
		weight := a.control.Weight(now, admission.Source(netip.MustParseAddr(from)))
		if weight > 0 != want {
			t.Errorf("source %s has the weight %d", from, weight)
		}
	}
	// The source of a known apiserver may open many at once.
	for i := range 700 {
		if why := a.control.Connection(now, netip.MustParseAddr("192.0.2.1"), admission.Terminated); why != "" {
			t.Fatalf("connection %d is rejected: %s", i, why)
		}
	}
}

// TestConnectionsOfOneTunnelIDAreBounded: many nodes of one id must leave the public port to others.
func TestConnectionsOfOneTunnelIDAreBounded(t *testing.T) {
	const nodes, each = 40, 1000
	a := newTestAdmissions(t, t.TempDir(), 1)
	now := time.Now()
	for owner, role := range map[string]model.Role{
		record.OwnerEgress: model.RoleEgress, record.OwnerForward: model.RoleEdge,
	} {
		var all []tunnels.Placed
		id, other := model.NewID(), model.NewID()
		for i := range nodes * each {
			all = append(all, tunnels.Placed{
				Tunnel: tunnels.Tunnel{
					Key: fmt.Sprint(i), Node: fmt.Sprint("node-", i%nodes), ID: id, Since: now.Add(time.Duration(i)),
				},
				From: netip.MustParseAddr("192.0.2.1"), Owner: owner,
			})
		}
		all = append(all, tunnels.Placed{
			Tunnel: tunnels.Tunnel{Key: "other", Node: "node-1", ID: other, Since: now.Add(time.Hour)},
			From:   netip.MustParseAddr("192.0.2.2"), Owner: owner,
		})
		keys := a.excessConnections(all)
		if want := nodes*each - a.control.StreamLimits(role).ID; len(keys) != want || slices.Contains(keys, "other") {
			t.Errorf("%s: beyond the limit are %d, want %d", owner, len(keys), want)
		}
	}
}

// TestTheTunnelsOfAllEdgesAreBounded, also those that Envoy has admitted while it could not query the agent.
func TestTheTunnelsOfAllEdgesAreBounded(t *testing.T) {
	a, now := newTestAdmissions(t, t.TempDir(), 1), time.Now()
	var all []tunnels.Placed
	for i := range 26_000 {
		all = append(all, tunnels.Placed{
			Tunnel: tunnels.Tunnel{
				Key: fmt.Sprint(i), Node: "edge-1", ID: fmt.Sprint(i), Since: now.Add(time.Duration(i) * time.Millisecond),
			},
			From: netip.MustParseAddr("192.0.2.1"),
		})
	}
	if keys := a.excessOf(all, a.tunnelLimits, a.tunnels); len(keys) != 1000 || keys[0] != "25999" {
		t.Errorf("beyond the limit are %d", len(keys))
	}
}

// TestAFloodOfRequestsIsClosed: of two nodes of one id, the one with more requests than its rate loses its connection.
func TestAFloodOfRequestsIsClosed(t *testing.T) {
	if err := sockets.Permitted(); err != nil && os.Getenv("E2E_REQUIRED") == "" {
		t.Skipf("can't close connections here: %v", err)
	}
	hostile, other, at := conntest.Two(t)
	a, id, path := newTestAdmissions(t, t.TempDir(), 1), model.NewID(), filepath.Join(t.TempDir(), "tunnels.log")
	a.table = tunnels.New(tunnels.Config{
		Domain: domain, Log: path, Reopen: func(context.Context) error { return nil }, Request: a.requested, Logger: a.log,
	})
	used := func(conn net.Conn, node string) string {
		return fmt.Sprintf(`{"connection":1,"event":"DownstreamStart","id":%q,"local":%q,"node":"CN=%s","owner":"egress",`+
			`"peer":%q,"time":"2026-01-01T12:00:00.000Z"}`+"\n", domain.EgressID(id), at, node, conn.LocalAddr())
	}
	text := strings.Repeat(used(other, "kas-2"), 100) + strings.Repeat(used(hostile, "kas-1"), 30_000)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context){func(ctx context.Context) { _ = a.table.Run(ctx) }, a.run} {
		ended := make(chan struct{})
		t.Cleanup(func() { <-ended })
		go func() { defer close(ended); run(t.Context()) }()
	}
	_ = hostile.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := hostile.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection of the flood ends with %v", err)
	}
	_ = other.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection of another node ends with %v", err)
	}
	eventually.True(t, 10*time.Second, "it is counted", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r := a.rejected[admission.ByRequests]; a.closed.requests == 0 || r.count == 0 || r.edge.Node != "kas-1" {
			return fmt.Errorf("%d were closed, and the rejections are %+v", a.closed.requests, r)
		}
		return nil
	})
}
