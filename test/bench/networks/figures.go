package networks

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/test/bench/record"
)

// quantity is what a benchmark measures: its name, its unit, and how it is compared with konnectivity.
type quantity struct {
	name, unit string
	better     direction
	goal       float64 // how many times better than konnectivity's better mode; 0: it is not compared
}

// direction is which values are better.
type direction int

// Directions. Of counts and outages, lower values are better, and the worst round counts instead of the median. Counts
// may be zero, so 1 is added to both sides of a ratio.
const (
	higher direction = iota
	lower
	outage
	count
)

// notWorse is the goal of everything except what flow control is for.
const notWorse = 0.9

// figure holds the samples of one quantity under the same conditions, by subject.
type figure struct {
	quantity
	params  map[string]string
	samples map[string][]float64
}

// value returns the value of a subject, or NaN if it has none.
func (f figure) value(subject string) float64 {
	samples := f.samples[subject]
	if len(samples) > 0 && f.better >= outage {
		return slices.Max(samples)
	}
	return record.Median(samples)
}

// title is the name of a figure with its conditions.
func (f figure) title() string {
	var conditions []string
	for _, name := range slices.Sorted(maps.Keys(f.params)) {
		conditions = append(conditions, f.params[name]+" "+name)
	}
	if len(conditions) == 0 {
		return f.name
	}
	return f.name + ", " + strings.Join(conditions, ", ")
}

// measure measures each subject once in every round, in turns, and records the samples. A measurement returns values
// by the names of the quantities. A peer that fails is reported and left out from then on; the direct connection and
// Fairlead must not fail.
func (r *run) measure(
	ctx context.Context, rounds int, params map[string]string, quantities []quantity,
	one func(ctx context.Context, s *subject) (map[string]float64, error),
) error {
	all := make([]figure, len(quantities))
	for i, q := range quantities {
		all[i] = figure{q, params, map[string][]float64{}}
	}
	broken := map[*subject]bool{}
	for range rounds {
		for _, s := range r.subjects {
			if broken[s] {
				continue
			}
			values, err := one(ctx, s)
			if err != nil && s.name != "direct" && s.name != "fairlead" && ctx.Err() == nil {
				r.Printf("left out: %s: %v", s.name, err)
				broken[s] = true
				continue
			}
			if err != nil {
				return fmt.Errorf("measuring %s: %w", s.name, err)
			}
			for _, f := range all {
				if value, ok := values[f.name]; ok {
					f.samples[s.name] = append(f.samples[s.name], value)
				}
			}
		}
	}
	for _, f := range all {
		r.keep(f)
	}
	return nil
}

// keep records the samples of a figure.
func (r *run) keep(f figure) {
	r.figures = append(r.figures, f)
	for _, s := range r.subjects {
		samples := f.samples[s.name]
		if len(samples) == 0 {
			continue
		}
		value, text := f.value(s.name), ""
		if f.better >= outage {
			text = fmt.Sprintf("worst of %d", len(samples))
		}
		r.log.Add(record.Result{
			Name: f.name, Subject: s.name, Params: f.params, Unit: f.unit, Samples: samples, Value: value, Text: text,
		})
		r.Printf("%-26s %-50s %.4g %s", s.name, f.title(), value, f.unit)
	}
}

// compare records how many times better than konnectivity's better mode Fairlead is, and whether that meets the goal.
func (r *run) compare() {
	for _, f := range r.figures {
		ratio, ok := f.ratio()
		if !ok {
			continue
		}
		text := fmt.Sprintf("goal %.3g: not met", f.goal)
		if ratio >= f.goal {
			text = fmt.Sprintf("goal %.3g: met", f.goal)
		}
		r.Printf("%-77s %.3g × konnectivity, %s", f.title(), ratio, text)
		r.log.Add(record.Result{
			Name: "against konnectivity", Subject: "fairlead", Unit: "× konnectivity's better mode", Value: ratio, Text: text,
			Params: map[string]string{"figure": f.title()},
		})
	}
}

// ratio returns how many times better than konnectivity's better mode Fairlead is: more than 1 is better.
func (f figure) ratio() (float64, bool) {
	ours := f.value("fairlead")
	theirs := slices.DeleteFunc([]float64{f.value(grpcMode), f.value(connectMode)}, math.IsNaN)
	if f.goal == 0 || math.IsNaN(ours) || len(theirs) == 0 {
		return 0, false
	}
	switch f.better {
	case higher:
		return ours / slices.Max(theirs), true
	case count:
		return (slices.Min(theirs) + 1) / (ours + 1), true
	default:
		return slices.Min(theirs) / ours, true
	}
}
