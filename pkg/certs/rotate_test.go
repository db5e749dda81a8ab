package certs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
)

// issuer is a fake issuer for a Rotation: it issues identities, or returns an error.
type issuer struct {
	t     *testing.T
	ca    *certs.CA
	life  time.Duration
	early time.Duration // how much earlier than now its leaves become valid
	dir   string        // of the store
	store *certs.Store
	log   bytes.Buffer

	check   func(certs.Identity) error
	changed func() error
	written func(error)
	during  func() // called while a leaf is issued

	mu    sync.Mutex
	err   error
	calls int           // since the last call of pass
	jump  time.Duration // how far the clock was set forward
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	ca, err := certs.NewCA("test CA", time.Now(), 10000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	return &issuer{t: t, ca: ca, life: 24 * time.Hour, dir: dir, store: openStore(t, dir)}
}

// start runs a rotation until the test ends.
func (i *issuer) start() {
	ctx, cancel := context.WithCancel(i.t.Context())
	r := &certs.Rotation{
		Store:   i.store,
		Renew:   i.renew,
		Check:   i.check,
		Changed: i.changed,
		Written: i.written,
		Now:     i.now,
		Log:     slog.New(slog.NewTextHandler(&i.log, nil)),
	}
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	i.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			i.t.Error(err)
		}
	})
}

func (i *issuer) now() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Add(i.jump)
}

func (i *issuer) renew(context.Context) (certs.Identity, []byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls++
	if i.err != nil {
		return certs.Identity{}, nil, i.err
	}
	if i.during != nil {
		i.during()
	}
	return newIdentity(i.t, i.ca, time.Now().Add(i.jump-i.early), i.life+i.early), i.ca.CertPEM(), nil
}

// pass waits, and returns how often the issuer was called since the last pass.
func (i *issuer) pass(d time.Duration) int {
	_ = retry.Sleep(i.t.Context(), d) // in the time of the test's bubble
	synctest.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	calls := i.calls
	i.calls = 0
	return calls
}

func (i *issuer) set(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.err = err
}

func (i *issuer) expect(what string, got, low, high int) {
	i.t.Helper()
	if got < low || got > high {
		i.t.Errorf("%s: %d attempts, want %d to %d", what, got, low, high)
	}
}

func TestALeafIsRenewedAtTwoThirdsOfItsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.start()
		i.expect("at the start", i.pass(time.Second), 1, 1)
		i.expect("before 16 h", i.pass(16*time.Hour-2*time.Second), 0, 0)
		i.expect("until 17.2 h", i.pass(72*time.Minute), 1, 1)
		i.expect("in 10 days", i.pass(240*time.Hour), 13, 15)
	})
}

func TestAFreshLeafOnDiskIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		if err := i.store.Save(newIdentity(t, i.ca, time.Now(), i.life), i.ca.CertPEM()); err != nil {
			t.Fatal(err)
		}
		i.start()
		i.expect("in 15 h", i.pass(15*time.Hour), 0, 0)
	})
}

func TestADueAndAnExpiredLeafOnDiskAreRenewedAtOnce(t *testing.T) {
	for name, age := range map[string]time.Duration{"due": 18 * time.Hour, "expired": 30 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newIssuer(t)
				if err := i.store.Save(newIdentity(t, i.ca, time.Now().Add(-age), i.life), i.ca.CertPEM()); err != nil {
					t.Fatal(err)
				}
				i.start()
				i.expect("at the start", i.pass(time.Second), 1, 1)
			})
		})
	}
}

func TestWaitsBetweenAttempts(t *testing.T) {
	tests := map[string]struct {
		leaf       bool // whether there is a valid leaf
		err        error
		min, max   int // attempts in the first 10 min
		soonAgain  time.Duration
		loggedOnce string
	}{
		"without a leaf and a server: soon": {
			err:        errors.New("nobody there"),
			min:        120,
			max:        250,
			soonAgain:  5 * time.Second,
			loggedOnce: "nobody there",
		},
		"slowly without a leaf after a rejection": {
			err:        fmt.Errorf("%w: used up", certs.ErrRefused),
			min:        10,
			max:        25,
			soonAgain:  time.Minute,
			loggedOnce: "used up",
		},
		"with a valid leaf and no server: in peace": {
			leaf:       true,
			err:        errors.New("nobody there"),
			min:        10,
			max:        40,
			soonAgain:  time.Minute,
			loggedOnce: "nobody there",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newIssuer(t)
				if tc.leaf {
					if err := i.store.Save(newIdentity(t, i.ca, time.Now().Add(-18*time.Hour), i.life), i.ca.CertPEM()); err != nil {
						t.Fatal(err)
					}
				}
				i.set(tc.err)
				i.start()
				i.expect("in 10 min", i.pass(10*time.Minute), tc.min, tc.max)
				i.set(nil)
				i.expect("when it works again", i.pass(tc.soonAgain), 1, 1)
				if n := strings.Count(i.log.String(), tc.loggedOnce); n != 1 {
					t.Errorf("the reason was logged %d times:\n%s", n, i.log.String())
				}
			})
		})
	}
}

func TestALeafShorterThanTheClockSkewIsNotRenewedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.life, i.early = time.Minute, certs.ClockSkew
		i.start()
		i.expect("in 10 min", i.pass(10*time.Minute), 13, 16)
	})
}

func TestAnAlmostExpiredLeafIsNotRenewedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.life = time.Millisecond
		i.start()
		i.expect("in 10 s", i.pass(10*time.Second), 2, 11)
	})
}

func TestAClockThatIsSetForwardIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.start()
		i.expect("at the start", i.pass(time.Second), 1, 1)
		i.mu.Lock()
		i.jump = 20 * time.Hour
		i.mu.Unlock()
		i.expect("within a minute", i.pass(61*time.Second), 1, 1)
	})
}

func TestAFailedChangedIsRetriedAndDelaysNoRenewal(t *testing.T) {
	for name, onDisk := range map[string]bool{"a new identity": false, "one on disk": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newIssuer(t)
				if onDisk {
					if err := i.store.Save(newIdentity(t, i.ca, time.Now(), i.life), i.ca.CertPEM()); err != nil {
						t.Fatal(err)
					}
				}
				var changedCalls atomic.Int32
				var works atomic.Bool
				i.changed = func() error {
					changedCalls.Add(1)
					if !works.Load() {
						return errors.New("not usable")
					}
					return nil
				}
				i.start()
				calls := i.pass(10 * time.Minute)
				i.expect("in 10 min, told", int(changedCalls.Load()), 10, 40)
				i.expect("in 24 h", calls+i.pass(24*time.Hour-10*time.Minute), 1, 2)
				if n := strings.Count(i.log.String(), "not usable"); n != 1 {
					t.Errorf("the reason was logged %d times:\n%s", n, i.log.String())
				}
				works.Store(true)
				changedCalls.Store(0)
				i.pass(time.Minute)
				i.expect("when it works again, told", int(changedCalls.Load()), 1, 1)
			})
		})
	}
}
