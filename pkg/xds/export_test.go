package xds

import (
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/pkg/model"
)

// DenyInterval is the least time between two changes of what gateways deny. DenyRate is in bytes a second.
const DenyInterval, DenyRate = denyInterval, denyRate

// Unlimited removes the limits of the edges of one tunnel.
func (s *Server) Unlimited() {
	l := s.limits
	l.request, l.tunnel = limit.Rate{Every: 1, Burst: 1 << 30}, limit.Rate{Every: 1, Burst: 1 << 30}
	l.nodeStreams, l.tunnelStreams = 1<<20, 1<<20
}

// SetRequestRate sets how many requests one stream may send at once; after that it may send ten per second.
func (s *Server) SetRequestRate(burst int) {
	s.limits.request = limit.Rate{Every: 100 * time.Millisecond, Burst: burst}
}

// Stale reports whether the denials wait to be resolved again.
func (s *Server) Stale() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.denials.stale
}

// Revoked is revoked.
func (s *Server) Revoked() (denied []model.EdgeRef, omitted int, filtered []model.EdgeRef) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	return s.revoked()
}

// StopBuilding blocks the build of edges' resources until goOn is called.
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

// SetMaxResponse sets how many bytes of resources a response of a new stream may have.
func (s *Server) SetMaxResponse(bytes int) { s.maxResponse = bytes }

// SetTunnelStreams sets how many streams the edges of one tunnel may have.
func (s *Server) SetTunnelStreams(n int) { s.limits.tunnelStreams = n }

// SetLog replaces the log. There must be no streams yet.
func (s *Server) SetLog(log *slog.Logger) { s.log = log }

// Probe returns when it has had the lock.
func (s *Server) Probe() {
	s.mu.Lock()
	defer s.mu.Unlock()
}
