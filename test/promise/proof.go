package promise

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/kubelog"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// Proof is the frame of a proof whose tests build their own installations, as root.
type Proof struct {
	Name     string // what the last line begins with, such as verify identity
	Parallel int    // how many tests run at the same time: they mostly wait, whatever processors there are
	// Missing is the error that a part is missing which the proof needs; nil stands for those of every installation.
	Missing func() error

	mu   sync.Mutex
	labs []*lab.Lab
}

// Main runs the tests, prints the result and returns the exit code. Ctrl-C cleans up too.
func (p *Proof) Main(m *testing.M) int { return p.MainWith(m, func() {}) }

// MainWith is Main, and calls summarize between the last test and the last line.
func (p *Proof) MainWith(m *testing.M, summarize func()) int {
	_ = flag.Set("test.parallel", strconv.Itoa(p.Parallel))
	kubelog.SetLogger(slog.New(slog.DiscardHandler)) // clients here have nothing to say that a test doesn't
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := p.possible(); err != nil && os.Getenv("E2E_REQUIRED") == "" {
		fmt.Printf("skipping %s: %v\n", p.Name, err)
		return 0
	}
	start := time.Now()
	finished := context.AfterFunc(ctx, func() {
		p.closeAll(context.WithoutCancel(ctx))
		os.Exit(1)
	})
	code := m.Run()
	finished()
	summarize()
	Measured("total_s", time.Since(start).Seconds())
	fmt.Println(Summary(p.Name))
	return code
}

// possible is why the tests can't run here.
func (p *Proof) possible() error {
	if os.Geteuid() != 0 {
		return errors.New("making network namespaces needs root")
	}
	if p.Missing != nil {
		return p.Missing()
	}
	_, err := workspace.FindParts()
	return err
}

// Need ends a test that can't run here.
func (p *Proof) Need(t *testing.T) {
	t.Helper()
	if err := p.possible(); err != nil {
		if os.Getenv("E2E_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// Start starts an installation, as lab.New returns it, that ends with the test. The logs of one whose test failed are kept.
func (p *Proof) Start(t *testing.T, l *lab.Lab, err error) *lab.Lab {
	t.Helper()
	Must(t, err)
	p.mu.Lock()
	p.labs = append(p.labs, l)
	p.mu.Unlock()
	begin := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			if folder, err := l.KeepLogs(); err == nil {
				fmt.Println("the logs of all processes of", t.Name(), "are in", folder)
			}
		}
		l.Close(context.Background())
	})
	Must(t, l.Start(t.Context()))
	Measured("lab_s", time.Since(begin).Seconds())
	return l
}

// closeAll closes the last one first: an installation may stand on the network of one before.
func (p *Proof) closeAll(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.labs) - 1; i >= 0; i-- {
		p.labs[i].Close(ctx)
	}
}
