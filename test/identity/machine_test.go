package identity

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fairlead/fairlead/test/promise"
)

// machine is shared by all installations, and may have only two processors. Each promise holds a part of it.
// TestRotationsInterruptNoRequest holds all of it while certificates that live for seconds are replaced under load;
// otherwise a slow machine would fail the test. A test that waits for all of it gets it next. Other loads are small
// enough to run beside other tests.
var machine = parts{Weighted: semaphore.NewWeighted(whole)}

type parts struct {
	*semaphore.Weighted
	holders sync.Map // names of the tests that hold a part
}

// heldBy reports whether a test, or a test that contains it, holds a part.
func (p *parts) heldBy(test string) bool {
	for {
		if _, held := p.holders.Load(test); held {
			return true
		}
		above := strings.LastIndexByte(test, '/')
		if above < 0 {
			return false
		}
		test = test[:above]
	}
}

const (
	whole = 64 // more than the number of promises that are proven at the same time
	// turn bounds the wait for the machine. The test that needs it alone takes less, even on a slow machine.
	turn = 10 * time.Minute
)

// that proves one promise and reports the result. It waits while TestRotationsInterruptNoRequest holds the machine.
func that(t *testing.T, name string, check func(t *testing.T)) bool {
	t.Helper()
	return promise.That(t, name, func(t *testing.T) {
		t.Helper()
		t.Cleanup(hold(t, 1))
		check(t)
	})
}

// hold waits for a part of the machine, and returns a function that releases it, which may be called twice.
func hold(t *testing.T, n int64) (release func()) {
	t.Helper()
	if machine.heldBy(t.Name()) {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(t.Context(), turn)
	defer cancel()
	if err := machine.Acquire(ctx, n); err != nil {
		t.Fatalf("waiting for the machine: %v", err)
	}
	machine.holders.Store(t.Name(), nil)
	return sync.OnceFunc(func() {
		machine.holders.Delete(t.Name())
		machine.Release(n)
	})
}

// meeting is a point of one test that another test waits for.
type meeting struct {
	expected bool // set before tests run in parallel
	reached  chan struct{}
	once     sync.Once
}

// controlPlaneGone is the time when TestEdgesServeWithoutTheControlPlane only waits for minutes, which is the best time
// to hold the whole machine.
var controlPlaneGone = meeting{reached: make(chan struct{})}

// expect announces, in the sequential part of a test, that the test will reach the meeting. If the test ends earlier,
// the waiting test continues.
func (m *meeting) expect(t *testing.T) {
	m.expected = true
	t.Cleanup(m.reach)
}

func (m *meeting) reach() { m.once.Do(func() { close(m.reached) }) }

// wait waits for the meeting, unless it is not expected.
func (m *meeting) wait(t *testing.T) {
	t.Helper()
	if !m.expected {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), turn)
	defer cancel()
	select {
	case <-m.reached:
	case <-ctx.Done():
		t.Fatal("the outage has not begun")
	}
}
