package proc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// restartDelay is systemd's default RestartSec.
const restartDelay = 100 * time.Millisecond

// Service is a program that is restarted whenever it ends, like systemd's Restart=always.
type Service struct {
	cancel context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	spec    Spec
	current *Process
	resume  chan struct{} // not nil while held: closed by Resume
}

// Supervise starts a service. It runs until Stop.
func Supervise(spec Spec) (*Service, error) {
	process, err := Start(spec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Service{spec: spec, cancel: cancel, ended: make(chan struct{}), current: process}
	go s.run(ctx)
	return s, nil
}

func (s *Service) run(ctx context.Context) {
	defer close(s.ended)
	for {
		process := s.Process()
		select {
		case <-ctx.Done():
			process.Stop()
			return
		case <-process.Done():
		}
		if !s.waitForRestart(ctx) {
			return
		}
		s.mu.Lock()
		spec := s.spec
		s.mu.Unlock()
		next, err := Start(spec)
		if err != nil {
			continue // the process that ended is checked again, after another delay
		}
		s.mu.Lock()
		s.current = next
		s.mu.Unlock()
	}
}

// waitForRestart waits as long as systemd would, and while the service is held. It reports whether to continue.
func (s *Service) waitForRestart(ctx context.Context) bool {
	s.mu.Lock()
	resume := s.resume
	s.mu.Unlock()
	if resume != nil {
		select {
		case <-ctx.Done():
			return false
		case <-resume:
		}
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(restartDelay):
		return true
	}
}

// Process returns the running or else the last process.
func (s *Service) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Kill ends the process with SIGKILL. The service restarts it.
func (s *Service) Kill() { s.Process().Kill() }

// Hold ends the process with SIGKILL, and keeps it stopped until Resume.
func (s *Service) Hold() {
	s.hold()
	s.Kill()
}

func (s *Service) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume == nil {
		s.resume = make(chan struct{})
	}
}

// Resume starts a held service.
func (s *Service) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume != nil {
		close(s.resume)
		s.resume = nil
	}
}

// Change changes the spec of the next start. The running process is not affected.
func (s *Service) Change(change func(*Spec)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.spec)
}

// Terminate asks the process to end, as systemd does, and returns when it has ended. It stays stopped until Resume.
func (s *Service) Terminate(patience time.Duration) error {
	s.hold()
	process := s.Process()
	_ = process.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-process.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("ending %s: it still runs %s after SIGTERM", s.spec.Name, patience)
	}
}

// Stop ends the service permanently.
func (s *Service) Stop() {
	s.cancel()
	<-s.ended
}

// WaitReady waits until a condition holds, however often the program is restarted. The error contains the end of its
// log.
func (s *Service) WaitReady(ctx context.Context, timeout time.Duration, condition func(context.Context) error) error {
	if err := Wait(ctx, timeout, condition); err != nil {
		spec := s.Process().Spec
		return fmt.Errorf("waiting for %s: %w\n%s", spec.Name, err, Tail(spec.Log, 20))
	}
	return nil
}

// Alive returns nil while the present process has not ended.
func (s *Service) Alive() error {
	process := s.Process()
	select {
	case <-process.done:
		return fmt.Errorf("%s has ended: %w\n%s", process.Name, errors.Join(process.err), Tail(process.Log, 20))
	default:
		return nil
	}
}
