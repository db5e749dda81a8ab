package watchdog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/watchdog"
)

// signals returns signals of an Envoy with two workers.
func signals(main bool, workers ...watchdog.Worker) watchdog.Signals {
	return watchdog.Signals{Main: main, MainRuns: true, Workers: workers}
}

var (
	answers = watchdog.Worker{Known: true, Answers: true, Runs: true}
	busy    = watchdog.Worker{Known: true, Runs: true}
	still   = watchdog.Worker{Known: true}
	unknown = watchdog.Worker{}

	well   = signals(true, answers, answers)
	frozen = watchdog.Signals{Workers: []watchdog.Worker{still, still}}
)

// span is some time with the same signals in each observation.
type span struct {
	s     watchdog.Signals
	long  time.Duration
	every time.Duration // between observations; 0: one Interval
}

// observe returns when an Envoy was first unready, counted from the start, and when it was replaced.
func observe(spans []span) (unready time.Duration, silent string, replaced []time.Duration) {
	var w watchdog.Watch
	begin := time.Now()
	now := begin
	unready = -1
	w.Observe(now, well)
	for _, span := range spans {
		every := span.every
		if every == 0 {
			every = watchdog.Interval
		}
		for end := now.Add(span.long); now.Before(end); {
			now = now.Add(every)
			v := w.Observe(now, span.s)
			if v.Silent != "" && unready < 0 {
				unready, silent = now.Sub(begin), v.Silent
			}
			if v.Replace {
				replaced = append(replaced, now.Sub(begin))
			}
		}
	}
	return unready, silent, replaced
}

func TestDecisions(t *testing.T) {
	const never = -1 * time.Nanosecond
	tests := map[string]struct {
		in       []span
		unready  time.Duration // never: it stays ready
		silent   string
		replaced []time.Duration
	}{
		"all answer": {in: []span{{s: well, long: time.Hour}}, unready: never},
		"frozen": {
			in:       []span{{s: frozen, long: time.Minute}},
			unready:  5 * time.Second,
			silent:   "main thread (admin interface) and 2 of its 2 workers",
			replaced: []time.Duration{15 * time.Second},
		},
		"frozen for 4 s again and again": {
			in: []span{
				{s: frozen, long: 4 * time.Second},
				{s: well, long: time.Second},
				{s: frozen, long: 4 * time.Second},
				{s: well, long: time.Second},
			},
			unready: never,
		},
		"frozen for 14 s": {
			in:      []span{{s: frozen, long: 14 * time.Second}, {s: well, long: time.Minute}},
			unready: 5 * time.Second,
			silent:  "workers",
		},
		"the main thread is blocked": {
			in:      []span{{s: signals(false, answers, answers), long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "main thread",
		},
		"the main thread stands still": {
			in:      []span{{s: watchdog.Signals{Workers: []watchdog.Worker{answers, answers}}, long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "main thread",
		},
		"one of two workers is deadlocked": {
			in:      []span{{s: signals(true, answers, still), long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "1 of its 2 workers",
		},
		"all workers are deadlocked": {
			in:       []span{{s: signals(true, still, still), long: time.Minute}},
			unready:  5 * time.Second,
			silent:   "2 of its 2 workers",
			replaced: []time.Duration{15 * time.Second},
		},
		"busy workers": {
			in:      []span{{s: signals(true, busy, busy), long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "workers",
		},
		"all is busy": {
			in:      []span{{s: signals(false, busy, busy), long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "workers",
		},
		"workers that have not started": {
			in:      []span{{s: signals(true, unknown, unknown), long: time.Hour}},
			unready: never,
		},
		"a start with much configuration": {
			in:      []span{{s: signals(false, unknown, unknown), long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "main thread",
		},
		"frozen before its workers started": {
			in:       []span{{s: watchdog.Signals{Workers: []watchdog.Worker{unknown, unknown}}, long: time.Minute}},
			unready:  5 * time.Second,
			silent:   "main thread",
			replaced: []time.Duration{15 * time.Second},
		},
		"draining": {
			in:      []span{{s: watchdog.Signals{Workers: frozen.Workers, Drains: true}, long: time.Hour}},
			unready: 5 * time.Second,
			silent:  "workers",
		},
		"frozen again after it was replaced": {
			in: []span{
				{s: frozen, long: 15 * time.Second},
				{s: well, long: time.Minute},
				{s: frozen, long: 5 * time.Minute},
			},
			unready:  5 * time.Second,
			silent:   "workers",
			replaced: []time.Duration{15 * time.Second, 5*time.Minute + 15*time.Second},
		},
		"the machine was suspended for an hour": {
			in:      []span{{s: frozen, long: time.Hour, every: time.Hour}, {s: well, long: time.Minute}},
			unready: never,
		},
		"the agent was frozen for a minute": {
			in: []span{
				{s: frozen, long: 3 * time.Second},
				{s: frozen, long: time.Minute, every: time.Minute},
				{s: well, long: time.Minute},
			},
			unready: never,
		},
		"the agent is starved of CPU": {
			in:      []span{{s: frozen, long: time.Hour, every: 2 * watchdog.Interval}},
			unready: never,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			unready, silent, replaced := observe(tc.in)
			if unready != tc.unready || !strings.Contains(silent, tc.silent) {
				t.Errorf("unready after %s: %q, want %s: %q", unready, silent, tc.unready, tc.silent)
			}
			if len(replaced) != len(tc.replaced) {
				t.Fatalf("replaced after %v, want %v", replaced, tc.replaced)
			}
			for i := range replaced {
				if replaced[i] != tc.replaced[i] {
					t.Errorf("replaced after %v, want %v", replaced, tc.replaced)
				}
			}
		})
	}
}

func TestAReplacementBeforeTheAgentStartedCounts(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct{ replaced, want time.Duration }{
		"a minute ago":                        {-time.Minute, watchdog.ReplaceApart - time.Minute},
		"by a clock that was set back":        {time.Hour, watchdog.ReplaceApart},
		"longer ago than replacements matter": {-time.Hour, watchdog.ReplaceAfter},
	} {
		t.Run(name, func(t *testing.T) {
			w := watchdog.NewWatch(now.Add(test.replaced), now)
			w.Observe(now, frozen)
			for at := watchdog.Interval; at <= time.Hour; at += watchdog.Interval {
				if w.Observe(now.Add(at), frozen).Replace {
					if at != test.want {
						t.Errorf("replaced after %s, want %s", at, test.want)
					}
					return
				}
			}
			t.Error("never replaced")
		})
	}
}
