package robustness

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestScheduleIsAFunctionOfItsSeed(t *testing.T) {
	for seed := range uint64(50) {
		one, two := Schedule(seed, 10*time.Minute), Schedule(seed, 10*time.Minute)
		if !reflect.DeepEqual(one, two) {
			t.Fatalf("two schedules of seed %d differ", seed)
		}
		if reflect.DeepEqual(one, Schedule(seed+1, 10*time.Minute)) {
			t.Fatalf("seeds %d and %d have the same schedule", seed, seed+1)
		}
		read, err := Parse("# a comment\n\n" + Format(one))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(one, read) {
			t.Fatalf("the schedule of seed %d changes when it is printed and parsed", seed)
		}
	}
}

func TestSchedulesHaveAllActionsAndOverlap(t *testing.T) {
	seen, overlaps := map[Action]bool{}, 0
	for seed := range uint64(50) {
		steps := Schedule(seed, 10*time.Minute)
		for i, s := range steps {
			seen[s.Action] = true
			if s.End() > 10*time.Minute {
				t.Errorf("seed %d: %q ends after the run", seed, s)
			}
			for _, other := range steps[:i] {
				if other.End() < s.At {
					continue
				}
				overlaps++
				if other.lane() == s.lane() {
					t.Errorf("seed %d: %q and %q overlap", seed, other, s)
				}
			}
		}
	}
	if len(seen) != len(targets) {
		t.Errorf("50 schedules have %d of %d actions: %v", len(seen), len(targets), seen)
	}
	if overlaps == 0 {
		t.Error("no two steps overlap")
	}
}

func TestParseRejects(t *testing.T) {
	for name, text := range map[string]string{
		"a missing field":               "1s 2s kill",
		"no time":                       "soon 2s kill paris/0/agent",
		"no duration":                   "1s long kill paris/0/agent",
		"an unknown action":             "1s 2s crash paris/0/agent",
		"a target of another action":    "1s 2s unplug controller/0",
		"a process that does not exist": "1s 2s kill paris/7/agent",
	} {
		if steps, err := Parse(text); err == nil {
			t.Errorf("%s: %v", name, steps)
		}
	}
}

// scheduleFile reads a schedule of the folder that keeps them.
func scheduleFile(t *testing.T, file string) []Step {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := Parse(string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(steps) == 0 || !strings.HasPrefix(string(text), "#") {
		t.Fatalf("%s has no steps, or no comment that says what it is for", file)
	}
	return steps
}

// scheduleFiles returns the schedules that make verify-robustness replays.
func scheduleFiles(t *testing.T) []string { return filesIn(t, "schedules") }

// longScheduleFiles returns the schedules that only make robustness runs.
func longScheduleFiles(t *testing.T) []string { return filesIn(t, "long") }

func filesIn(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/" + folder + "/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("found the %s %q: %v", folder, files, err)
	}
	return files
}

func TestKeptSchedulesCanBeRead(t *testing.T) {
	for _, file := range slices.Concat(scheduleFiles(t), longScheduleFiles(t)) {
		scheduleFile(t, file)
	}
}
