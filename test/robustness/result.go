package robustness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// maxResult is longer than the line of any run: a day has some 10,000 faults, and the time of each has a few bytes.
const maxResult = 4 << 20

// Result is the line of one run in the file of results.
type Result struct {
	Time       time.Time      `json:"time"`
	Name       string         `json:"name"`           // random, or the file of the schedule
	Seed       uint64         `json:"seed,omitempty"` // of a random schedule
	Seconds    float64        `json:"seconds"`
	Steps      int            `json:"steps"`
	Faults     int            `json:"faults"`
	Requests   int            `json:"requests"`
	Failed     int            `json:"failed"` // although there should be a tunnel; no violation while something is broken
	Judged     int            `json:"judged"` // requests for whose failure there would have been no excuse
	Void       int            `json:"void"`   // missed times that do not count, because the machine was late
	Violations map[string]int `json:"violations"`
	SLO        SLO            `json:"slo"`
}

// Summarize returns the result of a run.
func Summarize(name string, history []Entry) Result {
	record := newRecord(history)
	r := Result{
		Time: time.Now().UTC(), Name: name, Violations: map[string]int{}, SLO: record.measure(), Judged: record.judged(),
	}
	up, wanted := map[string]bool{}, map[int64]bool{}
	for _, e := range history {
		r.Seconds = max(r.Seconds, e.At.Seconds())
		switch e.Kind {
		case KindRun:
			r.Seed = e.Seed
		case KindStep:
			r.Steps++
			if e.Fault {
				r.Faults++
			}
		case KindExpect:
			up[e.Cluster] = e.Up
		case KindAsk:
			r.Requests++
			wanted[e.ID] = up[e.Cluster]
		case KindAnswer:
			if e.Error != "" && wanted[e.ID] {
				r.Failed++
			}
		}
	}
	for _, v := range Check(history) {
		if v.Void {
			r.Void++
		} else {
			r.Violations[v.Rule]++
		}
	}
	return r
}

// Append appends the result to a file.
func (r Result) Append(file string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing a result: %w", err)
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("writing a result: %w", err)
	}
	_, err = out.Write(append(line, '\n'))
	if err := out.Close(); err != nil {
		return fmt.Errorf("writing a result: %w", err)
	}
	return err
}

// Report returns what all runs of a file of results were together, and then, if they have several names, what the runs
// of each name were.
func Report(in io.Reader) (string, error) {
	all, named := newSum(), map[string]*sum{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxResult)
	for lines.Scan() {
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return "", fmt.Errorf("reading result %d: %w", all.runs+1, err)
		}
		all.add(r)
		if named[r.Name] == nil {
			named[r.Name] = newSum()
		}
		named[r.Name].add(r)
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading result %d: %w", all.runs+1, err)
	}
	text := all.report()
	if len(named) > 1 {
		for _, name := range slices.Sorted(maps.Keys(named)) {
			text += "\nof " + name + ": " + named[name].report()
		}
	}
	return text, nil
}

// sum is what several runs were together.
type sum struct {
	Result
	runs      int
	seeds     map[uint64]bool
	redundant Result // of the runs that have SLO.Redundant
}

func newSum() *sum {
	return &sum{Result: Result{Violations: map[string]int{}}, seeds: map[uint64]bool{}}
}

func (s *sum) add(r Result) {
	s.runs++
	s.Seconds += r.Seconds
	s.Steps += r.Steps
	s.Faults += r.Faults
	s.Requests += r.Requests
	s.Failed += r.Failed
	s.Judged += r.Judged
	s.Void += r.Void
	s.SLO.add(r.SLO)
	if r.SLO.Redundant.Requests > 0 {
		s.redundant.Seconds += r.Seconds
		s.redundant.Faults += r.Faults
	}
	if r.Seed != 0 {
		s.seeds[r.Seed] = true
	}
	for rule, n := range r.Violations {
		s.Violations[rule] += n
	}
}

func (s *sum) report() string {
	text := &strings.Builder{}
	fmt.Fprintf(text, "%d runs, %.2f hours, %d seeds, %d steps, %d faults, %d requests, %d failed, %d without an excuse, "+
		"%d void\n", s.runs, s.Seconds/time.Hour.Seconds(), len(s.seeds), s.Steps, s.Faults, s.Requests, s.Failed, s.Judged,
		s.Void)
	if len(s.Violations) == 0 {
		text.WriteString("no violation\n")
	}
	for _, rule := range slices.Sorted(maps.Keys(s.Violations)) {
		fmt.Fprintf(text, "violations of %q: %d\n", rule, s.Violations[rule])
	}
	if s.Seconds > 0 {
		text.WriteString(s.SLO.Report(s.faultsPerHour(), s.redundant.faultsPerHour()))
	}
	return text.String()
}

func (r Result) faultsPerHour() float64 { return float64(r.Faults) * time.Hour.Seconds() / r.Seconds }
