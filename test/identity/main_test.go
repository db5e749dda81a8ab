// Package identity proves how edges come to be trusted, stay so through every rotation and restart, and stop at once when
// they are told to: with Fairlead's programs, real Envoys and real apiservers in network namespaces. The names of its tests
// are the promises.
//
// Three tests run at the same time, each in an installation of its own: TestRotations with certificates that live for seconds,
// under load; TestDoors with everything that somebody may try at a door; TestOutage without a control plane for five minutes.
// The first has the machine alone for some minutes: see machine. With -short only a part of TestDoors runs.
package identity

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
)

// What every test here says, in short.
var (
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

const patience = promise.Patience

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

// runAll runs the tests and prints the result. Ctrl-C cleans up too.
func runAll(m *testing.M) int {
	_ = flag.Set("test.parallel", "16") // by default as many as there are processors, but tests here mostly wait
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if reason := whyNot(); reason != "" && os.Getenv("E2E_REQUIRED") == "" {
		fmt.Println("skipping the proof of identity:", reason)
		return 0
	}
	start := time.Now()
	finished := context.AfterFunc(ctx, func() {
		labs.closeAll(context.WithoutCancel(ctx))
		os.Exit(1)
	})
	code := m.Run()
	finished()
	measured("total_s", time.Since(start).Seconds())
	fmt.Println(promise.Summary("verify identity"))
	return code
}

// whyNot is why the tests can't run here; empty if they can.
func whyNot() string {
	if os.Geteuid() != 0 {
		return "making network namespaces needs root"
	}
	if _, err := lab.FindParts(); err != nil {
		return err.Error()
	}
	return ""
}

// labs are those that run now.
var labs running

type running struct {
	sync.Mutex
	all []*lab.Lab
}

func (r *running) add(l *lab.Lab) {
	r.Lock()
	defer r.Unlock()
	r.all = append(r.all, l)
}

func (r *running) closeAll(ctx context.Context) {
	r.Lock()
	defer r.Unlock()
	var group sync.WaitGroup
	for _, l := range r.all {
		group.Go(func() { l.Close(ctx) })
	}
	group.Wait()
}

// starting is held by who starts an installation.
var starting sync.Mutex

// newLab builds an installation that ends with the test. The logs of one whose test failed are kept.
func newLab(t *testing.T, options lab.Options) *lab.Lab {
	t.Helper()
	if reason := whyNot(); reason != "" {
		if os.Getenv("E2E_REQUIRED") != "" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	starting.Lock() // one after the other: what runs in one of them should not wait for the start of another
	defer starting.Unlock()
	start := time.Now()
	l, err := lab.New(t.Context(), options)
	must(t, err)
	labs.add(l)
	t.Cleanup(func() {
		if t.Failed() {
			if folder, err := l.KeepLogs(); err == nil {
				fmt.Println("the logs of all processes of", t.Name(), "are in", folder)
			}
		}
		l.Close(context.Background())
	})
	must(t, l.Start(t.Context()))
	measured("lab_s", time.Since(start).Seconds())
	return l
}
