package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// tellEvery is how often a step that takes long says how far it is.
const tellEvery = 10 * time.Second

// progress prints what happens: the step, how many there are, and the time since the first one began.
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

// step runs a step, and prints how far it is until it has ended.
func (p *progress) step(ctx context.Context, s step) error {
	p.mu.Lock()
	p.at++
	p.title, p.detail = s.title, ""
	p.mu.Unlock()
	p.print()
	done := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(tellEvery)
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

// tell replaces what is known about the step that runs.
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
