package promise

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
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
	Name string // the beginning of the last line, such as verify identity
	// how many tests run at the same time. They mostly wait, so it does not depend on the number of processors
	Parallel int
	// Missing returns an error if a part is missing that the proof needs. If it is nil, only the parts of every
	// installation are checked.
	Missing func() error

	mu      sync.Mutex
	closers []func(context.Context)
}

// Main runs the tests, prints the result and returns the exit code. It also cleans up after Ctrl-C.
func (p *Proof) Main(m *testing.M) int { return p.MainWith(m, func() {}) }

// MainWith is Main, and calls summarize after the last test and before the last line.
func (p *Proof) MainWith(m *testing.M, summarize func()) int {
	_ = flag.Set("test.parallel", strconv.Itoa(p.Parallel))
	kubelog.SetLogger(slog.New(slog.DiscardHandler)) // discards the clients' logs, because the tests report all errors
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

// possible returns an error if the tests cannot run here.
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

// Need ends a test that cannot run here.
func (p *Proof) Need(t *testing.T) {
	t.Helper()
	if err := p.possible(); err != nil {
		if os.Getenv("E2E_REQUIRED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// Start takes the results of lab.New. The installation ends with the test. If the test fails, its logs are kept.
func (p *Proof) Start(t *testing.T, l *lab.Lab, err error) *lab.Lab {
	t.Helper()
	Must(t, err)
	p.OnInterrupt(l.Close)
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

// OnInterrupt adds a function that ends what the tests run. It is called after Ctrl-C, maybe a second time.
func (p *Proof) OnInterrupt(closer func(context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closers = append(p.closers, closer)
}

// closeAll ends the last installation first, because it may use the network of an earlier one.
func (p *Proof) closeAll(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, closer := range slices.Backward(p.closers) {
		closer(ctx)
	}
}
