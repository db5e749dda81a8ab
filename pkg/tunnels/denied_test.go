package tunnels

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// TestADenialKeepsItsTime: each report repeats all denials, and the first one counts.
func TestADenialKeepsItsTime(t *testing.T) {
	edge, other := model.EdgeRef{Node: "edge-a", ID: idA}, model.EdgeRef{Node: "edge-b", ID: idB}
	first := newDenied(model.Denied{Edges: []model.EdgeRef{edge}}, denied{}, noon)
	second := newDenied(
		model.Denied{Edges: []model.EdgeRef{edge, other}, IDs: []string{idA, idC}}, first, noon.Add(time.Second),
	)
	third := newDenied(model.Denied{IDs: []string{idA}}, second, noon.Add(time.Minute))
	for what, tc := range map[string]struct {
		in   denied
		of   model.EdgeRef
		want time.Time
	}{
		"it is denied":                    {first, edge, noon},
		"it is not":                       {first, other, time.Time{}},
		"it is denied again":              {second, edge, noon},
		"it is denied later":              {second, other, noon.Add(time.Second)},
		"its id is denied":                {second, model.EdgeRef{Node: "edge-c", ID: idC}, noon.Add(time.Second)},
		"only its id is still denied":     {third, edge, noon.Add(time.Second)},
		"it is no longer denied":          {third, other, time.Time{}},
		"an edge of an id without denial": {third, model.EdgeRef{Node: "edge-c", ID: idC}, time.Time{}},
	} {
		tunnel := Tunnel{Node: tc.of.Node, ID: tc.of.ID}
		if got := tc.in.since(tunnel); !got.Equal(tc.want) || tc.in.has(tunnel) == tc.want.IsZero() {
			t.Errorf("%s: denied since %s (%t), want %s", what, got, tc.in.has(tunnel), tc.want)
		}
	}
}
