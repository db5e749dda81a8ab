package networks

import (
	"bufio"
	"errors"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestRatioIsAgainstTheBetterMode(t *testing.T) {
	for name, test := range map[string]struct {
		better                   direction
		ours, grpcMode, httpMode []float64
		want                     float64
	}{
		"a throughput":                {higher, []float64{150, 90, 120}, []float64{50}, []float64{60}, 2},
		"a latency":                   {lower, []float64{4}, []float64{10}, []float64{2}, 0.5},
		"a count that is zero":        {count, []float64{0}, []float64{3}, []float64{1}, 2},
		"the worst outage counts":     {outage, []float64{0.25, 0.1}, []float64{0.1, 0.2, 10}, []float64{1}, 4},
		"counts that are both zero":   {count, []float64{0}, []float64{0}, []float64{5}, 1},
		"one mode failed":             {higher, []float64{30}, nil, []float64{10}, 3},
		"both modes failed":           {higher, []float64{30}, nil, nil, math.NaN()},
		"Fairlead has not been there": {higher, nil, []float64{1}, []float64{1}, math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			f := figure{quantity{"x", "", test.better, notWorse}, nil, map[string][]float64{
				"fairlead": test.ours, grpcMode: test.grpcMode, connectMode: test.httpMode,
			}}
			got, ok := f.ratio()
			if ok == math.IsNaN(test.want) || ok && got != test.want {
				t.Errorf("ratio is %v, %v; want %v", got, ok, test.want)
			}
		})
	}
}

// fakeEcho is an exec whose command answers a line when answer returns true, and nothing after that.
func fakeEcho(t *testing.T, answer func(line int) bool) *echo {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	e := &echo{in: in, out: out, lines: bufio.NewReaderSize(out, 512), done: make(chan error, 1)}
	go func() {
		lines := bufio.NewReader(stdin)
		for i := 0; ; i++ {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			if answer(i) {
				_, _ = stdout.Write(line)
			}
		}
	}()
	t.Cleanup(func() { e.abort(io.EOF) })
	return e
}

func TestLinesThatWereDueCountAsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frozen := fakeEcho(t, func(line int) bool { return line < 2 })
		got := frozen.tripsUntil(time.Now().Add(300 * time.Millisecond))
		// Two lines are back at once; the third was sent at 100 ms, and those after it were due every 50 ms.
		if want := []float64{200, 150, 100, 50}; !slices.Equal(got, want) {
			t.Errorf("lines took %v ms, want %v", got, want)
		}
	})
}

func TestABrokenExecIsSilentToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := fakeEcho(t, func(int) bool { return false })
		time.AfterFunc(10*time.Millisecond, func() { broken.abort(errors.New("the edge was killed")) })
		got := broken.tripsUntil(time.Now().Add(12 * time.Second))
		if slices.Max(got) != 12_000 || len(got) != 240 {
			t.Errorf("the longest of %d lines took %v ms, want 12000 of 240", len(got), slices.Max(got))
		}
	})
}

func TestOutageIsTheLongestSilenceOrRequest(t *testing.T) {
	killed := time.Now()
	at := func(ms int) time.Time { return killed.Add(time.Duration(ms) * time.Millisecond) }
	failure := errors.New("the tunnel ended")
	for name, test := range map[string]struct {
		done   []request
		lost   int
		outage time.Duration
		err    error
	}{
		"none succeeded for a while": {
			done: []request{{at(-30), at(10), nil}, {at(0), at(100), failure}, {at(100), at(700), nil}},
			lost: 1, outage: 690 * time.Millisecond,
		},
		"one was slow beside others": {
			done:   []request{{at(10), at(20), nil}, {at(30), at(40), nil}, {at(-20), at(45), nil}},
			outage: 65 * time.Millisecond,
		},
		"one failed before": {done: []request{{at(-30), at(-10), failure}, {at(0), at(5), nil}}, outage: 5e6, err: failure},
	} {
		t.Run(name, func(t *testing.T) {
			l := &load{cancel: func() {}, done: test.done}
			lost, outage, err := l.stop(killed)
			if lost != test.lost || outage != test.outage || !errors.Is(err, test.err) {
				t.Errorf("%d lost, outage %s, %v; want %d, %s, %v", lost, outage, err, test.lost, test.outage, test.err)
			}
		})
	}
}
