package report

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestAViewOfBootsIsBounded has somebody with one token who invents machines, at several servers.
func TestAViewOfBootsIsBounded(t *testing.T) {
	view := NewView(nil, nil, func(string) {}, nil)
	now := time.Now()
	say := func(address, id, host string, at time.Time) {
		view.fleet.apply(address, &reportv1.Change{What: &reportv1.Change_Boot{Boot: &reportv1.MachineBoot{
			TunnelId: id, Host: host, Received: timestamppb.New(at), Report: bootOf(host, 1, "s"),
		}}}, now)
	}
	servers := []string{"a:1", "b:1"}
	view.fleet.list(servers, now)
	for _, address := range servers {
		view.fleet.apply(address, &reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(now)}}, now)
	}
	say("a:1", idB, "honest", now.Add(time.Hour)) // by a clock that is wrong
	bound := defaultBootBounds.machines
	for i := range 2*bound + 10 {
		now = now.Add(time.Millisecond)
		say(servers[i%2], idA, fmt.Sprint("made-up-", i), now)
	}
	boots, _ := view.Boots(idA)
	if len(boots) != bound {
		t.Errorf("%d machines of one tunnel are kept", len(boots))
	}
	for _, b := range boots {
		if b.Host == "made-up-0" || b.Received.After(now) {
			t.Errorf("%s of %s is kept", b.Host, b.Received)
		}
	}
	if honest, _ := view.Boots(idB); len(honest) != 1 {
		t.Error("a machine of another tunnel was pushed out")
	}
	now = now.Add(defaultBootBounds.keep + time.Minute)
	view.fleet.forget(now)
	if len(view.fleet.boots.tunnels) != 0 || view.fleet.boots.bytes != 0 {
		t.Errorf("%d bytes are kept for ever", view.fleet.boots.bytes)
	}
}
