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
	Void       int            `json:"void"`   // missed times that do not count, because the machine was late
	Violations map[string]int `json:"violations"`
	SLO        SLO            `json:"slo"`
}

// Summarize returns the result of a run.
func Summarize(name string, history []Entry) Result {
	r := Result{Time: time.Now().UTC(), Name: name, Violations: map[string]int{}, SLO: Measure(history)}
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

// Report returns what all runs of a file of results were together.
func Report(in io.Reader) (string, error) {
	var sum Result
	runs, seeds, violations := 0, map[uint64]bool{}, map[string]int{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxResult)
	for ; lines.Scan(); runs++ {
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return "", fmt.Errorf("reading result %d: %w", runs+1, err)
		}
		sum.Seconds += r.Seconds
		sum.Steps += r.Steps
		sum.Faults += r.Faults
		sum.Requests += r.Requests
		sum.Failed += r.Failed
		sum.Void += r.Void
		sum.SLO.add(r.SLO)
		if r.Seed != 0 {
			seeds[r.Seed] = true
		}
		for rule, n := range r.Violations {
			violations[rule] += n
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading result %d: %w", runs+1, err)
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "%d runs, %.2f hours, %d seeds, %d steps, %d faults, %d requests, %d failed, %d void\n", runs,
		sum.Seconds/time.Hour.Seconds(), len(seeds), sum.Steps, sum.Faults, sum.Requests, sum.Failed, sum.Void)
	if len(violations) == 0 {
		text.WriteString("no violation\n")
	}
	for _, rule := range slices.Sorted(maps.Keys(violations)) {
		fmt.Fprintf(text, "violations of %q: %d\n", rule, violations[rule])
	}
	if sum.Seconds > 0 {
		text.WriteString(sum.SLO.Report(float64(sum.Faults) * time.Hour.Seconds() / sum.Seconds))
	}
	return text.String(), nil
}
