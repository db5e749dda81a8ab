package robustness

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
)

const (
	// warm is how long the traffic runs before anything is measured or broken.
	warm = 2 * time.Second
	// shown is how many violations of a run are printed.
	shown = 20
	// randomMinutes is how long the random schedule of verify-robustness takes.
	randomMinutes = 2 * time.Minute
	// historyEnv is the environment variable with the folder for histories.
	historyEnv = "ROBUSTNESS_HISTORY"
	// shortSchedule is the only one of the short form.
	shortSchedule = "testdata/schedules/short.txt"
)

// TestRobustness replays the kept schedules, plants bugs, and runs a new random schedule. With ROBUSTNESS=random
// or ROBUSTNESS=planted it does only that, and with the name of a file it only replays that schedule.
func TestRobustness(t *testing.T) {
	proof.Need(t)
	if testing.Short() {
		in := newInstallation(t, lab.Options{Lean: true}, []string{"berlin", "paris", "tokyo"})
		in.replay(t, shortSchedule)
		in.planted(t, 2)
		return
	}
	seed, duration := randomly(t)
	steps, files, bugs := Schedule(seed, duration), scheduleFiles(t), true
	switch only := os.Getenv("ROBUSTNESS"); only {
	case "":
	case "random":
		files, bugs = nil, false
	case "planted":
		steps, files = nil, nil
	default:
		steps, files, bugs = nil, []string{only}, false
	}
	in := newInstallation(t, lab.Options{
		Collector: true, ControllerFlags: []string{
			"--apiserver-cidrs=" + netns.ManagementPrefix().String(),
			// A long run has renewals, and all phases of a rotation of the CA. A leaf is renewed 15 minutes before it expires,
			// longer than a wrong clock is wrong.
			"--leaf-lifetime=45m", "--ca-overlap=1h",
		},
	}, append(clusters(), "lima"))
	for _, file := range files {
		if !in.replay(t, file) {
			in.minimise(t, strings.TrimSuffix(filepath.Base(file), ".txt"), scheduleFile(t, file))
		}
	}
	if bugs {
		in.planted(t, len(in.bugs(t)))
	}
	if steps == nil {
		return
	}
	fmt.Printf("the random schedule has SEED=%d DURATION=%s:\n%s", seed, duration, Format(steps))
	if !that(t, "a random schedule breaks no rule", func(t *testing.T) {
		in.run(t, "random", seed, steps, duration)
	}) {
		in.minimise(t, fmt.Sprintf("seed-%d", seed), steps)
	}
}

// attemptsEnv is how often a schedule that fails is tried with fewer steps; by default not at all.
const attemptsEnv = "ROBUSTNESS_ATTEMPTS"

// minimise looks for a shorter schedule that fails, too, and writes it into the folder of the histories.
func (in *installation) minimise(t *testing.T, name string, steps []Step) {
	folder := os.Getenv(historyEnv)
	attempts, err := strconv.Atoi(cmp.Or(os.Getenv(attemptsEnv), "0"))
	must(t, err)
	if attempts == 0 || folder == "" {
		return
	}
	least := Minimise(steps, attempts, func(fewer []Step) bool {
		for _, v := range Check(in.play(t, Entry{Settle: settle}, fewer, 0, nil)) {
			if !v.Void {
				t.Logf("%d steps suffice: %s", len(fewer), v)
				return true
			}
		}
		return false
	})
	file := filepath.Join(folder, name+".txt")
	must(t, os.WriteFile(file, []byte("# The least steps of "+name+" that fail.\n"+Format(least)), 0o644))
	t.Logf("%d of %d steps are in %s", len(least), len(steps), file)
}

// randomly returns the seed and the duration of the random schedule.
func randomly(t *testing.T) (uint64, time.Duration) {
	t.Helper()
	seed, duration := rand.Uint64N(1e9)+1, randomMinutes
	var err error
	if text := os.Getenv("SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	if text := os.Getenv("DURATION"); text != "" {
		duration, err = time.ParseDuration(text)
		must(t, err)
	}
	return seed, duration
}

// replay runs a schedule that is kept in a file, and reports whether it broke no rule.
func (in *installation) replay(t *testing.T, file string) bool {
	steps := scheduleFile(t, file)
	name := strings.TrimSuffix(filepath.Base(file), ".txt")
	return that(t, "the kept schedule "+name+" breaks no rule", func(t *testing.T) {
		in.run(t, name, 0, steps, 0)
	})
}

// run runs a schedule and fails the test on each violation.
func (in *installation) run(t *testing.T, name string, seed uint64, steps []Step, duration time.Duration) {
	t.Helper()
	history := in.play(t, Entry{Seed: seed, Settle: settle}, steps, duration, nil)
	result := Summarize(name, history)
	if file := os.Getenv("ROBUSTNESS_RESULTS"); file != "" {
		must(t, result.Append(file))
	}
	t.Logf("%+v", result)
	measured("faults", float64(result.Faults))
	measured("requests", float64(result.Requests))
	measured("failed_while_broken", float64(result.Failed))
	measured("void", float64(result.Void))
	printed := 0
	for _, v := range Check(history) {
		if !v.Void {
			t.Fail()
		}
		if printed++; printed <= shown {
			t.Logf("void=%t %s", v.Void, v)
		}
	}
	if t.Failed() {
		in.keepLogs(t)
	}
}

// keepLogs copies the logs of all processes into a folder beside the history, because they explain a violation.
func (in *installation) keepLogs(t *testing.T) {
	t.Helper()
	folder := os.Getenv(historyEnv)
	if folder == "" {
		return
	}
	dir := filepath.Join(folder, fmt.Sprintf("logs-%d", time.Now().Unix()))
	must(t, os.CopyFS(dir, os.DirFS(filepath.Dir(in.LogFile("any")))))
	t.Log("the logs are in ", dir)
}

// play runs a schedule and returns its history, which is also kept in a file if ROBUSTNESS_HISTORY names a folder. The
// bugs are planted at their times, and removed in the end.
func (in *installation) play(t *testing.T, run Entry, steps []Step, duration time.Duration, bugs []bug) []Entry {
	t.Helper()
	out := io.Discard
	if folder := os.Getenv(historyEnv); folder != "" {
		file, err := os.CreateTemp(folder, "history-*.jsonl")
		must(t, err)
		defer func() { _ = file.Close() }()
		t.Log("the history is in ", file.Name())
		out = file
	}
	if slices.ContainsFunc(steps, func(s Step) bool { return s.Action == Transfer }) {
		in.startSecond(in.t)
	}
	ctx := t.Context()
	must(t, in.settled(ctx, settle))
	r := NewRecorder(out)
	run.Kind = KindRun
	r.Add(run)
	in.record(r)
	stopCanary := startCanary(ctx, r)
	c := in.startClients(ctx)
	<-time.After(warm)
	must(t, in.usage(ctx, false))
	begin := time.Now()
	defer plant(t, bugs, false)()
	if in.steps(ctx, t, steps) {
		<-time.After(time.Until(begin.Add(duration)))
	}
	_ = in.settled(ctx, run.Settle) // the check decides what it means if not
	must(t, in.usage(ctx, true))
	c.Stop()
	defer plant(t, bugs, true)()
	in.last(ctx)
	stopCanary() // not before: the last requests have a bound too
	must(t, in.searchLogs())
	r.Add(Entry{Kind: KindFinish})
	history, err := r.History()
	must(t, err)
	return history
}

// steps does all steps at their times, and returns when they have ended, and whether all have succeeded. After one that
// has not, no other begins: it breaks a rule, and what it leaves half done would break others for as long as the run
// lasts.
func (in *installation) steps(ctx context.Context, t *testing.T, steps []Step) (succeeded bool) {
	t.Helper()
	begin := time.Now()
	over, end := context.WithCancel(ctx)
	defer end()
	var group sync.WaitGroup
	for _, s := range steps {
		group.Go(func() {
			select {
			case <-time.After(time.Until(begin.Add(s.At))):
			case <-over.Done():
				return
			}
			if err := in.step(ctx, s); err != nil {
				t.Logf("%s: %v", s, err)
				end()
			}
		})
	}
	group.Wait()
	return over.Err() == nil
}

// step does a step when it is its turn. Until then it breaks nothing, so it does not begin.
func (in *installation) step(ctx context.Context, s Step) error {
	defer in.turn(s)()
	do := in.operation
	if s.Action.IsFault() || s.Action == Downgrade {
		do = in.fault
	}
	id, _ := in.history.Begin(Entry{Kind: KindStep, Text: s.String(), Fault: s.Action.IsFault()})
	done := Entry{Kind: KindDone, ID: id}
	err := s.lasting(ctx, do)
	if err != nil {
		done.Error = err.Error()
	}
	in.history.Add(done)
	return err
}

// turn waits until no other operation of the same workload cluster is under way, and until nothing is that cannot be
// tried again if the step keeps the management cluster from answering. It returns what ends the turn. A step that must
// not begin while the management cluster does not answer, or while a Cluster is moved, waits for what does so now.
func (in *installation) turn(s Step) (end func()) {
	name, _, _ := strings.Cut(s.Target, "/")
	end = func() {}
	switch m := in.members[name]; {
	case s.Action == NoQuorum, s.Action == Freeze && (name == "apiserver" || name == "etcd"):
		in.serving.Lock()
		return in.serving.Unlock
	case m != nil && !s.Action.IsFault() && s.Action != Downgrade:
		m.turn.Lock()
		end = m.turn.Unlock
	}
	if slices.Contains([]Action{ScaleDown, Create, Delete, Move, Transfer, OptOut}, s.Action) {
		in.serving.RLock()
		defer in.serving.RUnlock()
		in.moving.RLock()
		defer in.moving.RUnlock()
	}
	return end
}

// lasting begins a step, and ends it when its effect has lasted as long as it should.
func (s Step) lasting(ctx context.Context, do func(context.Context, Step) (func() error, error)) error {
	end, err := do(ctx, s)
	if err != nil {
		return fmt.Errorf("beginning it: %w", err)
	}
	<-time.After(s.For)
	if err := end(); err != nil {
		return fmt.Errorf("ending it: %w", err)
	}
	return nil
}
