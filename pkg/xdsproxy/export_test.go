package xdsproxy

import "time"

// Hasten has a proxy wait for less.
func (r *Proxy) Hasten(first, settled, proof time.Duration) {
	r.times.first, r.times.settled, r.times.proof = first, settled, proof
	r.times.rest, r.times.maxRest, r.times.retry = time.Millisecond, time.Millisecond, 50*time.Millisecond
}

// HastenSilence has a proxy wait less for the first answer of an xds-server.
func (r *Proxy) HastenSilence(silence time.Duration) { r.times.silence = silence }
