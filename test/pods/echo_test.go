package pods

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const interval = 50 * time.Millisecond // between two lines

// fakeEcho is an exec whose command answers a line when answer returns true, and nothing after that.
func fakeEcho(t *testing.T, answer func(line int) bool) *Echo {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	e := &Echo{in: in, out: out, lines: bufio.NewReaderSize(out, 512), done: make(chan error, 1)}
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
	t.Cleanup(func() { e.Abort(io.EOF) })
	return e
}

func TestLinesThatWereDueCountAsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frozen := fakeEcho(t, func(line int) bool { return line < 2 })
		got := frozen.TripsUntil(time.Now().Add(300*time.Millisecond), interval)
		// Two lines are back at once; the third was sent at 100 ms, and those after it were due every 50 ms.
		if want := []time.Duration{4 * interval, 3 * interval, 2 * interval, interval}; !slices.Equal(got, want) {
			t.Errorf("lines took %v, want %v", got, want)
		}
	})
}

func TestABrokenExecIsSilentToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := fakeEcho(t, func(int) bool { return false })
		time.AfterFunc(10*time.Millisecond, func() { broken.Abort(errors.New("the edge was killed")) })
		got := broken.TripsUntil(time.Now().Add(12*time.Second), interval)
		if slices.Max(got) != 12*time.Second || len(got) != 240 {
			t.Errorf("the longest of %d lines took %v, want 12 s of 240", len(got), slices.Max(got))
		}
	})
}
