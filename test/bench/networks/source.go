package networks

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/fairlead/fairlead/test/lab/proc"
)

// source is a server that sends bytes to every client until the client closes the connection. While it is held, new
// clients wait.
type source struct {
	listener net.Listener
	mu       sync.Mutex
	waiting  int           // clients
	released chan struct{} // closed: clients do not wait
}

func newSource(listener net.Listener) *source {
	s := &source{listener: listener, released: make(chan struct{})}
	close(s.released)
	go s.serve()
	return s
}

func (s *source) serve() {
	piece := make([]byte, 256<<10)
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			s.wait()
			for err := error(nil); err == nil; {
				_, err = conn.Write(piece)
			}
		}()
	}
}

func (s *source) wait() {
	s.mu.Lock()
	released := s.released
	s.waiting++
	s.mu.Unlock()
	<-released
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
}

// hold makes new clients wait until release.
func (s *source) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = make(chan struct{})
}

func (s *source) release() { close(s.released) }

// waitHeld returns when as many clients wait.
func (s *source) waitHeld(ctx context.Context, clients int) error {
	return proc.Wait(ctx, patience, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting < clients {
			return fmt.Errorf("%d of %d streams are open", s.waiting, clients)
		}
		return nil
	})
}
