package tunnel

import (
	"sync"

	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// registry is decision.Names for the workers of several controllers: it is safe for concurrent use. Its zero value is
// ready.
type registry struct {
	mu    sync.Mutex
	names decision.Names
}

// resolve is decision.Names.Resolve.
func (r *registry) resolve(d model.TunnelDomain, c decision.Candidate) decision.Resolution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Resolve(d, c)
}

// decide is decision.Names.Decide.
func (r *registry) decide(d model.TunnelDomain, c decision.Candidate) decision.Resolution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Decide(d, c)
}

// reserve is decision.Names.Reserve.
func (r *registry) reserve(d model.TunnelDomain, c decision.Candidate) (affected []model.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Reserve(d, c)
}

// release is decision.Names.Release.
func (r *registry) release(key model.Key) (affected []model.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Release(key)
}

// Holder is decision.Names.Holder.
func (r *registry) Holder(name string) (holder model.Key, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Holder(name)
}
