package config

import (
	"errors"
	"testing"
	"time"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// TestApplied holds what fails the command: a gateway, or a connected edge, that does not run what is published.
func TestApplied(t *testing.T) {
	now := time.Now()
	ended := now.Add(-time.Hour)
	node := func(name string, role model.Role, status collect.Status) collect.Node {
		return collect.Node{Name: name, Role: role, Resources: []collect.Resource{
			{TypeURL: resourcev3.ClusterType, Name: "a", Status: status, Since: ended},
		}}
	}
	for _, tc := range []struct {
		name    string
		fleet   collect.Fleet
		nodes   []collect.Node
		doubt   bool
		rollout *rolloutState
		first   string // the state of the first row
		applied bool
	}{
		{
			name: "a synced gateway", nodes: []collect.Node{node("gateway-0", model.RoleGateway, collect.Synced)},
			first: "SYNCED", applied: true,
		},
		{
			name:  "an edge of a replaced Pod beside its successor",
			fleet: collect.Fleet{Edges: []observed.Edge{{Node: "edge-a", Since: ended}, {Node: "edge-b", Connected: true}}},
			nodes: []collect.Node{node("edge-b", model.RoleEdge, collect.Synced)}, first: disconnected, applied: true,
		},
		{
			name:  "an edge that may be connected to a silent server",
			fleet: collect.Fleet{Edges: []observed.Edge{{Node: "edge-a", Since: ended}}}, doubt: true, first: unknownSync,
		},
		{
			name: "edges that only a silent server knows", doubt: true, first: "SYNCED",
			nodes: []collect.Node{node("gateway-0", model.RoleGateway, collect.Synced)},
		},
		{
			name:  "a connected edge that rejects a resource",
			nodes: []collect.Node{node("edge-a", model.RoleEdge, collect.Rejected)}, first: "NACK",
		},
		{
			name: "a connected edge that does not answer", nodes: []collect.Node{node("edge-a", model.RoleEdge, collect.Stale)},
			first: "STALE",
		},
		{
			name:  "an edge that reports and has no stream of configuration",
			fleet: collect.Fleet{Edges: []observed.Edge{{Node: "edge-a", Connected: true, Since: ended}}}, first: "STALE",
		},
		{
			name:  "a gateway of the installation that is not connected",
			fleet: collect.Fleet{Gateways: []collect.Gateway{{Name: "gateway-0", Installed: true, Since: ended}}},
			first: disconnected,
		},
		{
			name:  "a gateway that was scaled down",
			fleet: collect.Fleet{Gateways: []collect.Gateway{{Name: "gateway-1", Since: ended}}},
			nodes: []collect.Node{node("gateway-0", model.RoleGateway, collect.Synced)}, first: "SYNCED", applied: true,
		},
		{
			name: "a rollout that has stopped", nodes: []collect.Node{node("gateway-0", model.RoleGateway, collect.Synced)},
			rollout: &rolloutState{Phase: rollout.Phases[rollout.PhaseStopped]}, first: "SYNCED",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rows := syncRows(tc.fleet, tc.nodes, tc.doubt, nil, now)
			if len(rows) == 0 || rows[0].Status != tc.first {
				t.Fatalf("the rows are %+v, want %s first", rows, tc.first)
			}
			if rows[0].Status == disconnected && (rows[0].Since == nil || !rows[0].Since.Equal(ended)) {
				t.Errorf("it is not connected since %v, want %s", rows[0].Since, ended)
			}
			snapshot := syncSnapshot{rows: rows, rollout: tc.rollout}
			if tc.doubt {
				snapshot.failed = []error{errors.New("xds-server-1 does not answer")}
			}
			if got := snapshot.applied(); got != tc.applied {
				t.Errorf("applied is %t, want %t: %+v", got, tc.applied, rows)
			}
		})
	}
}

// TestAnEdgeThatHasJustConnected: the stream of configuration follows that of reports.
func TestAnEdgeThatHasJustConnected(t *testing.T) {
	now := time.Now()
	fleet := collect.Fleet{Edges: []observed.Edge{{Node: "edge-a", Connected: true, Since: now}}}
	rows := syncRows(fleet, nil, false, nil, now)
	if snapshot := (syncSnapshot{rows: rows}); len(rows) != 1 || !snapshot.applied() {
		t.Errorf("got %+v", rows)
	}
}
