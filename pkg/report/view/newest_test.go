package view

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/report"
)

func TestTheNewestReportOfAnEdgeCounts(t *testing.T) {
	s := script{t, newFleet(report.DefaultTimes)}
	s.run(whole + "2 list a b\n 2 b began\n 2 b synced\n 5 b edge e1 up\n 6 a edge e1 down")
	e := s.f.tunnel(tunnelID).Edges[0]
	if !e.Connected || e.Report.GetLastError() != "by b" || !e.Since.Equal(start.Add(5*time.Second)) {
		t.Errorf("got %+v", e)
	}
	s.run("10 b edge e1 down")
	e = s.f.tunnel(tunnelID).Edges[0]
	if e.Connected || !e.Since.Equal(start.Add(10*time.Second)) {
		t.Errorf("got %+v", e)
	}
}
