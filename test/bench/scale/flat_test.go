package scale

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/bench/record"
)

// day returns the values of a figure that is the given one at each hour, with noise of up to a share of it.
func day(noise float64, value func(hour float64) float64) (values []float64) {
	for h := range hours {
		v := value(float64(h))
		values = append(values, v*(1+noise*math.Sin(float64(h*h))))
	}
	return values
}

func TestWhatGrowsInADay(t *testing.T) {
	constant := func(level float64) func(float64) float64 { return func(float64) float64 { return level } }
	leak := func(level, each float64) func(float64) float64 {
		return func(h float64) float64 { return level + each*h }
	}
	filling := func(h float64) float64 { return 200 + 50*(1-math.Exp(-h/4)) }
	for name, tc := range map[string]struct {
		figure string
		values []float64
		grows  bool
	}{
		"a heap with noise of 5 %":               {heapFigure, day(.05, constant(90)), false},
		"a leak of 1 % an hour":                  {heapFigure, day(.02, leak(90, .9)), true},
		"a leak of 1 % an hour beside garbage":   {memoryFigure, day(.02, leak(200, 2.2)), true},
		"resident memory with noise of 10 %":     {memoryFigure, day(.1, constant(200)), false},
		"a heap that fills caches at first":      {heapFigure, day(.01, filling), false},
		"a heap that grows for a day and longer": {heapFigure, day(.01, leak(200, 1.5)), true},
		"goroutines that come and go":            {goroutinesFigure, day(.03, constant(75)), false},
		"a goroutine each hour":                  {goroutinesFigure, day(.0005, leak(5000, 1)), true},
		"a file for each replaced Cluster":       {filesFigure, day(0, leak(1000, replaced)), true},
	} {
		err := flat(map[figure][]float64{{tc.figure, "x"}: tc.values, {filesFigure, "y"}: day(0, constant(12))})
		if (err != nil) != tc.grows {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), tc.figure+" of the x: ") || strings.Contains(err.Error(), "the y")) {
			t.Errorf("%s: it names other series: %v", name, err)
		}
	}
}

// TestTheRecordedDayIsFlat checks the day that docs/benchmarks/scale.md shows.
func TestTheRecordedDayIsFlat(t *testing.T) {
	file, err := record.Load(filepath.Join("..", "results", "day.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	figures := map[figure][]float64{}
	for _, r := range file.Results {
		if name, _, ok := strings.Cut(r.Name, " after hour "); ok {
			figures[figure{name, r.Subject}] = r.Samples
		}
	}
	memory := figures[figure{memoryFigure, "xds-server"}]
	if len(figures) < 11 || len(memory) != hours {
		t.Fatalf("%d figures, %d hours", len(figures), len(memory))
	}
	if err := flat(figures); err != nil {
		t.Error(err)
	}
}

func TestLiveHeap(t *testing.T) {
	for _, tc := range []struct{ goal, stacks, want float64 }{{200, 40, 80}, {4, 8, 0}} {
		if got := liveHeap(tc.goal, tc.stacks); got != tc.want {
			t.Errorf("a collection at %v with stacks of %v: %v, want %v", tc.goal, tc.stacks, got, tc.want)
		}
	}
}
