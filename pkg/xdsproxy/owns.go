package xdsproxy

// Owns reports whether a resource of any type belongs to an upstream: Envoy has it, or is offered it, from there.
func (r *Proxy) Owns(upstream, resource string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, owners := range r.owners {
		if owner := owners[resource]; owner.upstream() == upstream && owner != nil {
			return true
		}
	}
	return false
}
