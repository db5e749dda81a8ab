package goals

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/test/bench/record"
)

// Results are the results of all suites by the key of each.
type Results struct {
	byKey    map[string]record.Result
	machines map[string]record.Machine // by run
}

// Load reads the results of the suites that goals refer to. A suite without a file has no results.
func Load(folder string) (Results, error) {
	all := Results{byKey: map[string]record.Result{}, machines: map[string]record.Machine{}}
	for _, suite := range suites() {
		file, err := record.Load(filepath.Join(folder, suite+".jsonl"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return all, err
		}
		for _, r := range file.Results {
			all.byKey[r.Key()] = r
		}
		maps.Copy(all.machines, file.Machines)
	}
	return all, nil
}

func suites() (names []string) {
	for _, g := range All {
		for _, c := range g.Cases {
			names = append(names, c.suite)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// find returns the result of a case for a subject.
func (r Results) find(c Case, subject string) (record.Result, bool) {
	found, ok := r.byKey[record.Result{Suite: c.suite, Name: c.name, Subject: subject, Params: c.params}.Key()]
	return found, ok
}

// Outcome says whether a case has reached its bound.
type Outcome int

// The outcomes, from the best to the worst.
const (
	Met Outcome = iota
	Excused
	Missed
	NotMeasured
)

// Figure is a measured value with the middle half of its samples, in the unit of its goal. Low and High are equal to
// Value if there are fewer than three samples.
type Figure struct {
	Value, Low, High float64
}

// Row is a goal with what was measured.
type Row struct {
	Goal
	Cases   []CaseResult // in the order of Goal.Cases
	Outcome Outcome      // the worst of all cases
}

// CaseResult is a case with what was measured. Ours is nil if Fairlead was not measured. Pair and Best, the best other
// tunnel, are nil if the same run has not measured them.
type CaseResult struct {
	Case
	Outcome    Outcome
	Ours, Pair *Figure
	Best       *Figure
	BestName   string
	Compared   float64 // what is compared with the bound: the figure, or its ratio
	Behind     bool    // another tunnel is ahead, and must not be
	Cause      *Cause  // if Outcome is Excused
	timesPair  float64 // the ratio to the pair; not a number if the same run has not measured it
	run        string
}

// Evaluate returns a row for each goal.
func Evaluate(goals []Goal, results Results, causes []Cause) []Row {
	var rows []Row
	for _, g := range goals {
		row := Row{Goal: g}
		for _, c := range g.Cases {
			result := g.evaluate(c, results)
			if cause := find(causes, g, result); result.Outcome == Missed && cause != nil {
				result.Outcome, result.Cause = Excused, cause
			}
			row.Cases = append(row.Cases, result)
			row.Outcome = max(row.Outcome, result.Outcome)
		}
		rows = append(rows, row)
	}
	return rows
}

func (g Goal) evaluate(c Case, results Results) CaseResult {
	result := CaseResult{Case: c, Outcome: NotMeasured, timesPair: math.NaN()}
	ours, ok := results.find(c, c.subject)
	if !ok {
		return result
	}
	result.run, result.Ours = ours.Run, c.figure(ours)
	beside := func(subject string) *record.Result {
		if r, ok := results.find(c, subject); ok && r.Run == ours.Run {
			return &r
		}
		return nil
	}
	if pair := beside(Pair); pair != nil {
		result.Pair, result.timesPair = c.figure(*pair), ratio(ours, *pair)
	}
	for _, name := range tunnels {
		if peer := beside(name); peer != nil {
			f := c.figure(*peer)
			if result.Best == nil || g.better(f.Value, result.Best.Value) {
				result.Best, result.BestName = f, name
			}
		}
	}
	result.Compared = result.Ours.Value
	if g.relativeTo != "" {
		reference := beside(g.relativeTo)
		if reference == nil {
			return result
		}
		result.Compared = ratio(ours, *reference)
	}
	if g.ahead {
		if result.Best == nil {
			return result
		}
		result.Behind = !g.better(result.Ours.Value, result.Best.Value)
	}
	result.Outcome = Missed
	if g.reaches(result.Compared, c.bound) && !result.Behind {
		result.Outcome = Met
	}
	return result
}

func (g Goal) better(a, b float64) bool {
	if g.atLeast {
		return a > b
	}
	return a < b
}

// reaches reports whether a figure reaches a bound. A figure that is not a number does not.
func (g Goal) reaches(figure, bound float64) bool { return figure == bound || g.better(figure, bound) }

// figure returns the value of a result in the unit of the goal.
func (c Case) figure(r record.Result) *Figure {
	times := cmp.Or(c.times, 1)
	if c.worst && len(r.Samples) > 0 {
		most := slices.Max(r.Samples) * times
		return &Figure{Value: most, Low: most, High: most}
	}
	f := Figure{Value: r.Value * times, Low: r.Value * times, High: r.Value * times}
	if len(r.Samples) >= 3 {
		low, high := record.Spread(r.Samples)
		f.Low, f.High = low*times, high*times
	}
	return &f
}

// ratio returns the median of the ratios of neighbours in a round. Samples are in the order of the rounds.
func ratio(ours, reference record.Result) float64 {
	if len(ours.Samples) == 0 || len(ours.Samples) != len(reference.Samples) {
		return ours.Value / reference.Value
	}
	var ratios []float64
	for i, sample := range ours.Samples {
		if reference.Samples[i] == 0 {
			return math.NaN()
		}
		ratios = append(ratios, sample/reference.Samples[i])
	}
	return record.Median(ratios)
}
