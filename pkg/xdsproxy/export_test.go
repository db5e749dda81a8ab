package xdsproxy

import "time"

// Hasten has a relay wait for less.
func (r *Relay) Hasten(first, settled, proof time.Duration) {
	r.times.first, r.times.settled, r.times.proof = first, settled, proof
	r.times.rest, r.times.maxRest, r.times.retry = time.Millisecond, time.Millisecond, 50*time.Millisecond
}

// HastenSilence has a relay wait less for the first answer of an xds-server.
func (r *Relay) HastenSilence(silence time.Duration) { r.times.silence = silence }
