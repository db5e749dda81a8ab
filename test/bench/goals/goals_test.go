package goals

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/bench/record"
)

// one is a goal like that of the throughput.
var one = Goal{
	ID: "throughput", Title: "throughput of 1 / 8 streams", Unit: "MB/s", relativeTo: Pair, atLeast: true, ahead: true,
	Cases: []Case{path("1", "throughput", 0.9, streams, "1"), path("8", "throughput", 0.9, streams, "8")},
}

// measured returns results of one figure with a number of streams, by subject.
func measured(n, run string, samples map[string][]float64) (all []record.Result) {
	for subject, of := range samples {
		all = append(all, record.Result{
			Suite: "path", Name: "throughput", Subject: subject, Params: map[string]string{streams: n}, Unit: "MB/s",
			Value: record.Median(of), Samples: of, Run: run,
		})
	}
	return all
}

func load(lists ...[]record.Result) Results {
	all := Results{byKey: map[string]record.Result{}, machines: map[string]record.Machine{}}
	for _, r := range slices.Concat(lists...) {
		all.byKey[r.Key()] = r
	}
	return all
}

// good are results that reach the goal with one stream.
var good = measured("1", "a", map[string][]float64{
	Fairlead: {95, 50, 190}, Pair: {100, 50, 200}, "rathole": {60, 45, 90}, "ssh": {20, 20, 20},
})

func TestARatioIsThatOfNeighboursInARound(t *testing.T) {
	eight := measured("8", "a", map[string][]float64{Fairlead: {90, 45, 180}, Pair: {100, 60, 200}, "rathole": {1, 1, 1}})
	row := Evaluate([]Goal{one}, load(good, eight), nil)[0]
	if row.Outcome != Met {
		t.Fatalf("outcome %v: %+v", row.Outcome, row.Cases)
	}
	for i, want := range []float64{0.95, 0.9} {
		if got := row.Cases[i].Compared; got != want {
			t.Errorf("ratio %d is %v, want %v", i, got, want)
		}
	}
	if c := row.Cases[0]; c.BestName != "rathole" || c.Best.Value != 60 || c.Pair.Value != 100 {
		t.Errorf("best %s %+v, pair %+v", c.BestName, c.Best, c.Pair)
	}
}

func TestOutcomes(t *testing.T) {
	cause := Cause{Goal: one.ID, Until: map[string]float64{"8": 0.5}, Text: "it waits", Profile: "p.md#a"}
	for name, test := range map[string]struct {
		eight  []record.Result
		causes []Cause
		want   Outcome
		text   string
	}{
		"nothing": {nil, nil, NotMeasured, "8: **not measured**"},
		"without Fairlead": {
			measured("8", "a", map[string][]float64{Pair: {1}, "rathole": {1}}), nil, NotMeasured, "8: **not measured**",
		},
		"the pair in another run": {
			append(measured("8", "a", map[string][]float64{Fairlead: {95}, "rathole": {1}}),
				measured("8", "b", map[string][]float64{Pair: {100}})...), nil, NotMeasured, "8: **not measured**",
		},
		"no other tunnel": {
			measured("8", "a", map[string][]float64{Fairlead: {95}, Pair: {100}}), nil, NotMeasured, "8: **not measured**",
		},
		"missed": {
			measured("8", "a", map[string][]float64{Fairlead: {60}, Pair: {100}, "ssh": {1}}), nil, Missed,
			"8: **not met**, no cause recorded",
		},
		"behind": {
			measured("8", "a", map[string][]float64{Fairlead: {95}, Pair: {100}, "ssh": {96}}), nil, Missed,
			"8: **not met**, no cause recorded, ssh ahead at 8",
		},
		"missed with a cause": {
			measured("8", "a", map[string][]float64{Fairlead: {60}, Pair: {100}, "ssh": {1}}),
			[]Cause{cause},
			Excused,
			"× 0.950 / 0.600; 1: met; 8: not met: it waits ([profile](../p.md#a))",
		},
		"worse than the cause explains": {
			measured("8", "a", map[string][]float64{Fairlead: {49}, Pair: {100}, "ssh": {1}}),
			[]Cause{cause},
			Missed,
			"8: **not met**",
		},
		"a cause that is not needed": {
			measured("8", "a", map[string][]float64{Fairlead: {95}, Pair: {100}, "ssh": {1}}), []Cause{cause}, Met, "; met |",
		},
		"a reference of zero": {
			measured("8", "a", map[string][]float64{Fairlead: {95}, Pair: {0}, "ssh": {1}}), nil, Missed, "8: **not met**",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rows := Evaluate([]Goal{one}, load(good, test.eight), test.causes)
			if rows[0].Outcome != test.want {
				t.Errorf("outcome %v, want %v: %+v", rows[0].Outcome, test.want, rows[0].Cases)
			}
			if got := Markdown(rows, "../"); !strings.Contains(got, test.text) {
				t.Errorf("no %q in\n%s", test.text, got)
			}
			if failed := len(Failed(rows)) > 0; failed != (test.want >= Missed) {
				t.Errorf("failed: %v", failed)
			}
		})
	}
}

func TestTheWorstSampleAndOtherUnits(t *testing.T) {
	result := record.Result{
		Suite: "scale", Name: "answers", Subject: Fairlead, Params: map[string]string{"clusters": "10000"},
		Value: 100, Samples: []float64{100, 90, 5300}, Run: "a",
	}
	goal := Goal{ID: "g", Cases: []Case{scale("", "answers", Fairlead, 5).atWorst().converted(1e-3)}}
	row := Evaluate([]Goal{goal}, load([]record.Result{result}), nil)[0]
	if c := row.Cases[0]; c.Compared != 5.3 || row.Outcome != Missed {
		t.Errorf("compared %v, outcome %v", c.Compared, row.Outcome)
	}
}

func TestACauseMayBeAMultipleOfThePair(t *testing.T) {
	goal := Goal{ID: "g", Cases: []Case{path("8", "throughput", 10, streams, "8")}}
	for name, test := range map[string]struct {
		samples map[string][]float64
		until   float64
		want    Outcome
	}{
		"it explains the ratio":      {map[string][]float64{Fairlead: {30}, Pair: {100}}, 0.3, Excused},
		"the ratio is worse":         {map[string][]float64{Fairlead: {30}, Pair: {100}}, 0.29, Missed},
		"the pair is not in the run": {map[string][]float64{Fairlead: {30}}, 1000, Missed},
	} {
		t.Run(name, func(t *testing.T) {
			cause := Cause{Goal: "g", Until: map[string]float64{"8": test.until}, TimesPair: true}
			row := Evaluate([]Goal{goal}, load(measured("8", "a", test.samples)), []Cause{cause})[0]
			if row.Outcome != test.want {
				t.Errorf("outcome %v, want %v", row.Outcome, test.want)
			}
		})
	}
}

func TestGoalsAreDistinct(t *testing.T) {
	var ids []string
	for _, g := range All {
		var labels []string
		for _, c := range g.Cases {
			labels = append(labels, c.Label)
		}
		slices.Sort(labels)
		if len(labels) == 0 || len(slices.Compact(slices.Clone(labels))) != len(labels) {
			t.Errorf("%s: labels %q", g.ID, labels)
		}
		ids = append(ids, g.ID)
	}
	slices.Sort(ids)
	if len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("IDs: %q", ids)
	}
}

// TestTheResultsHaveAFigureForEachGoal fails if a suite records a figure under another name or unit than a goal has.
func TestTheResultsHaveAFigureForEachGoal(t *testing.T) {
	results, err := Load(filepath.Join("..", "results"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range Evaluate(All, results, nil) {
		if row.Outcome == NotMeasured {
			t.Errorf("%s is not measured: %+v", row.ID, row.Cases)
		}
		for _, c := range row.Cases {
			r, _ := results.find(c.Case, c.subject)
			if c.times == 0 && r.Unit != row.Unit && r.Unit != "" {
				t.Errorf("%s has unit %q, and is recorded in %q", row.ID, row.Unit, r.Unit)
			}
		}
	}
}

func TestCausesReferToProfiles(t *testing.T) {
	causes, err := Causes()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range causes {
		file, anchor, ok := strings.Cut(c.Profile, "#")
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", file))
		if err != nil {
			t.Error(err)
			continue
		}
		words := strings.ReplaceAll(anchor, "-", " ")
		if !ok || !strings.Contains(strings.ToLower(string(text)), "# "+words+"\n") {
			t.Errorf("%s: no section %q in docs/%s", c.Goal, words, file)
		}
	}
}

func TestIncompleteCausesAreErrors(t *testing.T) {
	for text, want := range map[string]string{
		"- {goal: x, until: {'': 1}, text: t, profile: p}":            `"x" is not the ID of a goal`,
		"- {goal: writes, until: {'': 1}, text: t}":                   "text, profile and until are required",
		"- {goal: writes, until: {8: 1}, text: t, profile: p}":        `writes has no case "8"`,
		"- {goal: writes, until: {'': 1}, text: t, profil: p}":        "unknown field",
		"- {goal: throughput, until: {'8': 1}, text: t, profile: ''}": "required",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
