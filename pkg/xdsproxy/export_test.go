package xdsproxy

import "time"

// Hasten shortens the waits of a proxy.
func (p *Proxy) Hasten(first, settled, proof time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &p.relay.Times
	t.First, t.Settled, t.Proof = first, settled, proof
	t.Rest, t.MaxRest, t.Retry = time.Millisecond, time.Millisecond, 50*time.Millisecond
}

// HastenSilence shortens the wait for the first answer of an xds-server.
func (p *Proxy) HastenSilence(silence time.Duration) { p.silence = silence }
