package report_test

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestWaysOfAnEdgeAreBounded has an edge report more ways than it can have, with texts that are too long.
func TestWaysOfAnEdgeAreBounded(t *testing.T) {
	r := &reportv1.EdgeReport{}
	for range 100 {
		r.Ways = append(r.Ways, &reportv1.Way{To: "a\x1b" + strings.Repeat("x", 1000), Zone: strings.Repeat("z", 1000)})
	}
	clean := report.CleanEdge(r).GetWays()
	if len(clean) != 16 {
		t.Fatalf("%d ways are kept", len(clean))
	}
	if to, zone := clean[0].GetTo(), clean[0].GetZone(); len(to) > 300 || len(zone) > 100 || strings.Contains(to, "\x1b") {
		t.Errorf("the texts have %d and %d bytes: %.10q", len(to), len(zone), to)
	}
}
