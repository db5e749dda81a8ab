package tunnel

import (
	"sync"

	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// registry makes decision.Names safe for concurrent use by the workers of several controllers. Its zero value is ready.
type registry struct {
	mu    sync.Mutex
	names decision.Names
}

// resolve calls decision.Names.Resolve.
func (r *registry) resolve(d model.TunnelDomain, c decision.Candidate) decision.Resolution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Resolve(d, c)
}

// decide calls decision.Names.Decide.
func (r *registry) decide(d model.TunnelDomain, c decision.Candidate) decision.Resolution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Decide(d, c)
}

// reserve calls decision.Names.Reserve.
func (r *registry) reserve(d model.TunnelDomain, c decision.Candidate) (affected []model.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Reserve(d, c)
}

// release calls decision.Names.Release.
func (r *registry) release(key model.Key) (affected []model.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Release(key)
}

// Holder calls decision.Names.Holder.
func (r *registry) Holder(name string) (holder model.Key, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.names.Holder(name)
}
