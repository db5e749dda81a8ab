package view

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestAViewOfBootsIsBounded has the holder of one token invent machines, at several servers.
func TestAViewOfBootsIsBounded(t *testing.T) {
	view := New(nil, nil, func(string) {}, nil)
	now := time.Now()
	say := func(address, id, host string, at time.Time) {
		view.fleet.apply(address, &reportv1.Change{What: &reportv1.Change_Boot{Boot: &reportv1.MachineBoot{
			TunnelId: id, Host: host, Received: timestamppb.New(at),
			Report: &reportv1.BootReport{Machine: &reportv1.Machine{Hostname: host}},
		}}}, now)
	}
	servers := []string{"a:1", "b:1"}
	view.fleet.list(servers, now)
	for _, address := range servers {
		view.fleet.apply(address, &reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(now)}}, now)
	}
	say("a:1", "b", "honest", now.Add(time.Hour)) // by a clock that is wrong
	bound := report.DefaultBootBounds.Machines
	for i := range 2*bound + 10 {
		now = now.Add(time.Millisecond)
		say(servers[i%2], "a", fmt.Sprint("made-up-", i), now)
	}
	boots, _ := view.Boots("a")
	if len(boots) != bound {
		t.Errorf("%d machines of one tunnel are kept", len(boots))
	}
	for _, b := range boots {
		if b.Host == "made-up-0" || b.Received.After(now) {
			t.Errorf("%s of %s is kept", b.Host, b.Received)
		}
	}
	if honest, _ := view.Boots("b"); len(honest) != 1 {
		t.Error("a machine of another tunnel was pushed out")
	}
	now = now.Add(report.DefaultBootBounds.Keep + time.Minute)
	view.fleet.forget(now)
	if view.fleet.boots.Machines() != 0 || view.fleet.boots.Bytes() != 0 {
		t.Errorf("%d bytes are kept for ever", view.fleet.boots.Bytes())
	}
}
