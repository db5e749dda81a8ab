package xdsproxy

import "time"

// Hasten shortens the waits of a proxy.
func (r *Proxy) Hasten(first, settled, proof time.Duration) {
	r.times.first, r.times.settled, r.times.proof = first, settled, proof
	r.times.rest, r.times.maxRest, r.times.retry = time.Millisecond, time.Millisecond, 50*time.Millisecond
}

// HastenSilence shortens the wait for the first answer of an xds-server.
func (r *Proxy) HastenSilence(silence time.Duration) { r.times.silence = silence }
