package view

import (
	"fmt"
	"testing"

	"github.com/fairlead/fairlead/pkg/report"
)

func TestRemovedServersLeaveTheView(t *testing.T) {
	s := script{t, newFleet(report.DefaultTimes)}
	s.run(whole)
	for i := range 100 {
		s.run(fmt.Sprintf("%d list a x%d\n %d x%d began\n %d x%d synced\n %d x%d lost", i, i, i, i, i, i, i, i))
	}
	s.run("110 list a\n 200 tick\n 300 tick")
	if len(s.f.servers) != 1 {
		t.Errorf("%d servers are remembered", len(s.f.servers))
	}
}
