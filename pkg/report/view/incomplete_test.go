package view

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestAFleetListsGatewaysWithIncompleteRecords(t *testing.T) {
	f, now := newFleet(report.DefaultTimes), time.Unix(1000, 0)
	f.list([]string{"server"}, now)
	say := func(incomplete bool) {
		f.apply("server", &reportv1.Change{What: &reportv1.Change_Gateway{Gateway: &reportv1.GatewayState{
			Name: "gateway-0", Connected: true, Since: timestamppb.New(now), Incomplete: incomplete,
		}}}, now)
	}
	f.apply("server", &reportv1.Change{What: &reportv1.Change_Began{Began: timestamppb.New(now)}}, now)
	say(true)
	f.apply("server", &reportv1.Change{What: &reportv1.Change_Synced{Synced: true}}, now)
	if live := f.tunnel("x"); !live.Known || !slices.Equal(live.Incomplete, []string{"gateway-0"}) {
		t.Errorf("got %+v", live)
	}
	f.take()
	say(false)
	if live := f.tunnel("x"); len(live.Incomplete) != 0 || !f.take()[""] {
		t.Errorf("once it is complete: %+v", live)
	}
}
