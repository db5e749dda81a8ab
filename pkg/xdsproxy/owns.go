package xdsproxy

// Owns says whether a resource of any type is, or was last, of an upstream: Envoy has, or is to have, it from there.
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
