package view

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestTimesAreOfOneClock: the controller compares what the view returns with times of the apiserver, whose clock may
// differ from that of the controller's machine, and from those of xds-servers.
func TestTimesAreOfOneClock(t *testing.T) {
	const age = 30 * time.Second
	for name, ahead := range map[string]time.Duration{
		"the apiserver's clock is the same": 0, "it is ahead": 10 * time.Minute, "it is behind": -10 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			clock := func() time.Time { return time.Now().Round(0).Add(ahead) }
			v := New(nil, nil, func(string) {}, nil)
			v.SetClock(clock)
			began := time.Now()
			theirs := began.Add(-3 * time.Minute) // by the clock of the xds-server
			v.fleet.list([]string{"a:1"}, began)
			for _, change := range []*reportv1.Change{
				{What: &reportv1.Change_Began{Began: timestamppb.New(theirs)}},
				{What: &reportv1.Change_Boot{Boot: &reportv1.MachineBoot{
					TunnelId: tunnelID, Host: "m", Received: timestamppb.New(theirs.Add(-age)), Report: &reportv1.BootReport{},
				}}},
				{What: &reportv1.Change_Edge{Edge: &reportv1.EdgeState{
					TunnelId: tunnelID, Node: "e1", Since: timestamppb.New(theirs.Add(-age)), Report: &reportv1.EdgeReport{},
				}}},
			} {
				v.fleet.apply("a:1", change, began)
			}
			boots, _ := v.Boots(tunnelID)
			live, all := v.Tunnel(tunnelID), v.Fleet(true)
			for what, at := range map[string]time.Time{
				"a boot report": boots[0].Received, "an edge": live.Edges[0].Since,
				"an edge of all": all.Edges[EdgeRef{Node: "e1", ID: tunnelID}].Since,
			} {
				if wrong := clock().Sub(at) - age; wrong.Abs() > 5*time.Second {
					t.Errorf("%s: its time is wrong by %s", what, wrong)
				}
			}
		})
	}
}

// TestACorrectedClockChangesNoAge: times have monotonic readings, which the correction of a clock does not change.
func TestACorrectedClockChangesNoAge(t *testing.T) {
	s := newServer()
	s.begin(start, time.Now())
	if at := s.local(timestamppb.New(start.Add(-time.Minute))); !strings.Contains(at.String(), "m=") {
		t.Errorf("%s has no monotonic reading", at)
	}
}
