package edge

import (
	"hash/fnv"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// unusedPart is the part of a leaf's lifetime for which a reverse tunnel waits for its first client at most. A leaf is
	// renewed at 2/3 of its lifetime plus 1/20 (package certs), so at every moment the leaf of an unused reverse tunnel is
	// valid. For the same reason none has the trust bundle or the leaf of an earlier phase when the next phase of a
	// rotation of the CA begins, because a phase takes at least the lifetime of a leaf.
	unusedPart = 5
	// tooLongPart is the part from which the wait is too long for the leaf.
	tooLongPart = 4
	// leastWait bounds the wait, because each new reverse tunnel costs its gateway a handshake.
	leastWait = time.Second
)

// Renewal replaces reverse tunnels that have waited for long for their first client: see envoy.RenewUnused. It
// implements xdsproxy.Override. The zero value replaces none.
type Renewal struct{ wait atomic.Int64 } // of the leaf that needs the shortest

// Follow adapts the wait to the lifetime of a leaf that the agent uses, and returns whether it has changed. It keeps a
// wait that is short enough, because a change has Envoy dial all reverse tunnels anew.
func (r *Renewal) Follow(life time.Duration) bool {
	for {
		is, to := r.wait.Load(), int64(max(life/unusedPart, leastWait))
		if is > 0 && (is <= int64(life/tooLongPart) || is <= to) {
			return false
		}
		if r.wait.CompareAndSwap(is, to) {
			return true
		}
	}
}

// Form implements xdsproxy.Override.
func (r *Renewal) Form(name string) string {
	wait := time.Duration(r.wait.Load())
	if wait == 0 || !envoy.IsTunnelListener(name) {
		return ""
	}
	return waitOf(name, wait).String()
}

// Apply implements xdsproxy.Override.
func (r *Renewal) Apply(_, form string, resource *anypb.Any) *anypb.Any {
	wait, err := time.ParseDuration(form)
	if err != nil {
		return resource
	}
	return envoy.RenewUnused(resource, wait)
}

// waitOf returns the wait of one listener: from 3/4 of the longest to all of it, in milliseconds. So the reverse
// tunnels of an edge to its gateways, and those of all edges after an outage, do not end at the same time.
func waitOf(listener string, longest time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(listener)) // it never fails
	part := float64(h.Sum32()) / math.MaxUint32
	return (longest - time.Duration(part*float64(longest/4))).Truncate(time.Millisecond)
}
