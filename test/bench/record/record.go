// Package record stores the results of benchmarks as JSON lines, one file for each suite. Each line is a result of a
// run, or the facts of the machine of a run. It knows nothing about what is measured.
package record

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Result is one measured figure. Suite, Name, Subject and Params together are its key. A later result replaces an
// earlier one with the same key.
type Result struct {
	Suite   string            `json:"suite"`            // set by Log.Add
	Name    string            `json:"name"`             // what was measured: "throughput"
	Subject string            `json:"subject"`          // what was measured: "fairlead", "direct", the name of a peer
	Params  map[string]string `json:"params,omitempty"` // the conditions: "streams": "8"
	Unit    string            `json:"unit"`             // of Value and Samples: "MB/s"
	Value   float64           `json:"value"`            // the median of Samples, if there are any and it is zero
	Samples []float64         `json:"samples,omitempty"`
	Text    string            `json:"text,omitempty"` // shown beside the value
	Run     string            `json:"run"`            // set by Log.Add: when the run began
}

// Key identifies what was measured, of which subject, and under which conditions.
func (r Result) Key() string {
	parts := []string{r.Suite, r.Name, r.Subject}
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		parts = append(parts, name+"="+r.Params[name])
	}
	return strings.Join(parts, "|")
}

// line is one line of a file: the facts of a run, or a result.
type line struct {
	Machine *Machine `json:"machine,omitempty"`
	Result
}

// Log adds results to the file of one suite. It is not safe for concurrent use.
type Log struct {
	suite, run string
	machine    Machine
	all, taken float64 // of the cores at the beginning
	file       *os.File
	failed     error
}

// New opens the file of a suite in a folder, which it creates if necessary, and begins a run. Results of earlier runs
// are kept until the new run has a result with the same key.
func New(dir, suite string) (*Log, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, suite+".jsonl")
	kept, err := Load(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	machine := Facts()
	log := &Log{suite: suite, run: machine.Date, machine: machine}
	log.all, log.taken = coreTime()
	if log.file, err = os.Create(path); err != nil {
		return nil, err
	}
	// Results that are kept are written again, without those that a later result has replaced.
	runs := map[string]bool{}
	for _, r := range kept.Results {
		if !runs[r.Run] {
			runs[r.Run] = true
			m := kept.Machines[r.Run]
			log.write(line{Machine: &m, Result: Result{Suite: suite, Run: r.Run}})
		}
		log.write(line{Result: r})
	}
	log.facts()
	return log, log.failed
}

// Add writes a result. Close returns its error, if any.
func (l *Log) Add(r Result) {
	r.Suite, r.Run = l.suite, l.run
	if r.Value == 0 && len(r.Samples) > 0 {
		r.Value = Median(r.Samples)
	}
	l.write(line{Result: r})
}

func (l *Log) write(entry line) {
	data, err := json.Marshal(entry)
	if err == nil {
		_, err = l.file.Write(append(data, '\n'))
	}
	l.failed = cmp.Or(l.failed, err)
}

// facts writes the facts of the machine. Of two lines about one run, the later counts.
func (l *Log) facts() {
	l.write(line{Machine: &l.machine, Result: Result{Suite: l.suite, Run: l.run}})
}

// Close returns the first error of all writes.
func (l *Log) Close() error {
	if all, taken := coreTime(); all > l.all {
		l.machine.Stolen = math.Round(1000*(taken-l.taken)/(all-l.all)) / 10
		l.facts()
	}
	if err := errors.Join(l.failed, l.file.Close()); err != nil {
		return fmt.Errorf("recording results of %s: %w", l.suite, err)
	}
	return nil
}

// File is the content of a suite's file: the last result of each key, in the order in which the keys first appear.
type File struct {
	Machines map[string]Machine // by run
	Results  []Result
}

// Load reads the file of a suite.
func Load(path string) (File, error) {
	file := File{Machines: map[string]Machine{}}
	f, err := os.Open(path)
	if err != nil {
		return file, err
	}
	defer f.Close()
	at := map[string]int{}
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 16<<20)
	for n := 1; scanner.Scan(); n++ {
		var entry line
		if err := json.Unmarshal(scanner.Bytes(), &entry); err != nil {
			return file, fmt.Errorf("reading %s, line %d: %w", path, n, err)
		}
		if entry.Machine != nil {
			file.Machines[entry.Run] = *entry.Machine
			continue
		}
		key := entry.Key()
		if i, ok := at[key]; ok {
			file.Results[i] = entry.Result
			continue
		}
		at[key] = len(file.Results)
		file.Results = append(file.Results, entry.Result)
	}
	return file, scanner.Err()
}

// now returns the time at which a run begins, in UTC, to the second.
func now() string { return time.Now().UTC().Format(time.RFC3339) }
