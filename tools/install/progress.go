package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// reportEvery is the interval of progress reports of a long step.
const reportEvery = 10 * time.Second

// progress prints the current step, the number of steps, and the time since the start.
type progress struct {
	out   io.Writer
	start time.Time
	of    int

	mu     sync.Mutex
	at     int
	title  string
	detail string
}

func newProgress(out io.Writer, of int) *progress {
	return &progress{out: out, start: time.Now(), of: of}
}

// step runs a step, and prints its progress until it has ended.
func (p *progress) step(ctx context.Context, s step) error {
	p.mu.Lock()
	p.at++
	p.title, p.detail = s.title, ""
	p.mu.Unlock()
	p.print()
	done := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				p.print()
			}
		}
	})
	began := time.Now()
	err := s.run(ctx, p.tell)
	close(done)
	ticking.Wait()
	if err != nil {
		return fmt.Errorf("%s: %w", s.title, err)
	}
	p.tell("done in " + time.Since(began).Round(time.Second).String())
	p.print()
	return nil
}

// tell sets the progress of the running step.
func (p *progress) tell(detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detail = detail
}

func (p *progress) print() {
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed := time.Since(p.start).Round(time.Second)
	line := fmt.Sprintf("[%d of %d, %d:%02d] %s", p.at, p.of, int(elapsed.Minutes()), int(elapsed.Seconds())%60, p.title)
	if p.detail != "" {
		line += ": " + p.detail
	}
	fmt.Fprintln(p.out, line)
}
