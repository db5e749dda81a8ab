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

// The machine is what all installations share, and it may have but two processors. Each promise holds a part of it. Where certificates
// that live for seconds are replaced under load TestRotations holds all of it: else it would be the machine that fails. Who waits
// for all of it gets it next. Other loads are so small that they run beside the rest.
var machine = parts{Weighted: semaphore.NewWeighted(whole)}

type parts struct {
	*semaphore.Weighted
	holders sync.Map // names of the tests that hold some of it
}

// heldBy says whether a test holds some of it, or a test that it is a part of.
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
	whole = 64 // more than the promises that are proven at a time
	// turn bounds the wait for the machine: what needs it alone takes less, on a slow one too.
	turn = 10 * time.Minute
)

// that says and proves one promise. It waits while TestRotations has the machine.
func that(t *testing.T, name string, check func(t *testing.T)) bool {
	t.Helper()
	return promise.That(t, name, func(t *testing.T) {
		t.Helper()
		t.Cleanup(hold(t, 1))
		check(t)
	})
}

// hold waits for some of the machine, and returns what gives it back, which may be called twice.
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

// meeting is a point of one test for which another waits.
type meeting struct {
	expected bool // set before any test runs beside another
	reached  chan struct{}
	once     sync.Once
}

// controlPlaneGone is when TestOutage has nothing to do but to wait for minutes: the best time to have the machine alone.
var controlPlaneGone = meeting{reached: make(chan struct{})}

// expect says that a test will reach it, in its sequential part. If that ends before, nobody waits any more.
func (m *meeting) expect(t *testing.T) {
	m.expected = true
	t.Cleanup(m.reach)
}

func (m *meeting) reach() { m.once.Do(func() { close(m.reached) }) }

// wait waits for it, if anybody will reach it.
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
