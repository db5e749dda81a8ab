package xds

import (
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

// Unlimited removes the limits on the edges of one tunnel.
func (s *Server) Unlimited() {
	l := s.limits
	l.request, l.tunnel = limit.Rate{Every: 1, Burst: 1 << 30}, limit.Rate{Every: 1, Burst: 1 << 30}
	l.nodeStreams, l.tunnelStreams = 1<<20, 1<<20
}

// SetRequestRate sets the burst of requests of one stream; then ten a second are permitted.
func (s *Server) SetRequestRate(burst int) {
	s.limits.request = limit.Rate{Every: 100 * time.Millisecond, Burst: burst}
}

// StopBuilding blocks the building of edges' resources, and returns a function that unblocks it.
func (s *Server) StopBuilding() (goOn func()) {
	for range cap(s.limits.builds) {
		s.limits.builds <- struct{}{}
	}
	return func() {
		for range cap(s.limits.builds) {
			<-s.limits.builds
		}
	}
}

// SetTunnelStreams sets the number of streams that the edges of one tunnel may have.
func (s *Server) SetTunnelStreams(n int) { s.limits.tunnelStreams = n }
