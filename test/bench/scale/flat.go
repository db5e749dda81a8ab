package scale

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// The figures of each hour of a day.
const (
	heapFigure       = "heap in MB"   // what is in use
	memoryFigure     = "memory in MB" // the resident memory
	goroutinesFigure = "goroutines"
	filesFigure      = "open files"
)

// bound is by how much a series may grow in an hour: a share of its level, or a number.
type bound struct{ share, number float64 }

// bounds are for a day with 250 renewals and 20 replaced Clusters in an hour, after the hours in which it settles. They
// follow from the day of 27 November 2026 in test/bench/results/day.jsonl.
var bounds = map[string]bound{
	// A heap holds no garbage, so it varies least, and a leak of memory is a growth of a heap. Of Envoy's heap 0.06 % an
	// hour were measured.
	heapFigure: {share: 0.005},
	// The resident memory also has garbage, and pages that the allocators keep. It rose by 0.65 % an hour in the
	// xds-server, 0.47 % in the gateway-agent, and 0.2 % in the others, at a standard error of up to 0.14 %. A leak of
	// 1 % is still above this bound.
	memoryFigure: {share: 0.0075},
	// A leak of one for each replaced Cluster is 20 an hour. At most 0.13 an hour were measured, at a standard error of
	// 0.09.
	goroutinesFigure: {number: 0.5},
	filesFigure:      {number: 0.5},
}

// trend is how values grow from one to the next: from base at the first one by slope, with its standard error.
type trend struct{ base, slope, deviation float64 }

// trendOf returns the trend of at least three values, by least squares.
func trendOf(values []float64) trend {
	var x []float64
	for i := range values {
		x = append(x, float64(i))
	}
	l, n := leastSquares(x, values), float64(len(values))
	return trend{l.base, l.slope, math.Sqrt(l.off / (n - 2) / (n * (n*n - 1) / 12))}
}

// flat returns an error that names each series which grows by more than its bound after the settled hours. The growth
// counts without its standard error, so noise alone is no growth.
func flat(figures map[figure][]float64) error {
	var grown []string
	for _, f := range slices.SortedFunc(maps.Keys(figures), figure.compare) {
		t := trendOf(figures[f][settled:])
		most := bounds[f.name].share*t.base + bounds[f.name].number
		if t.slope-t.deviation > most {
			grown = append(grown, fmt.Sprintf(
				"%s of the %s: %.3f ± %.3f an hour from %.1f on, the bound is %.3f", f.name, f.subject, t.slope, t.deviation,
				t.base, most,
			))
		}
	}
	if len(grown) > 0 {
		return fmt.Errorf("growing after hour %d: %s", settled, strings.Join(grown, "; "))
	}
	return nil
}

// liveHeap returns how much the last garbage collection of a Go program has found in use. Without GOGC, the next one
// begins when the heap has grown by that and by the stacks: https://go.dev/doc/gc-guide#GOGC
func liveHeap(goal, stacks float64) float64 { return max(0, (goal-stacks)/2) }
