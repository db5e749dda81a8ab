package status

import (
	"errors"
	"sync"

	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
)

// ErrDraining is why an Envoy that is about to end is not ready.
var ErrDraining = errors.New("draining, and about to end")

var errStarting = errors.New("starting: it has no Envoy yet")

// Health says whether Envoy takes clients. It is safe for concurrent use.
type Health struct {
	mu       sync.Mutex
	obtained bool // this agent has an Envoy, and is not about to replace the one that it found
	draining bool
	waits    string        // for what a gateway waits before it takes clients; empty: for nothing
	silent   string        // the parts of Envoy that do not answer; empty: none
	changed  chan struct{} // closed when takes has another answer
}

// NewHealth returns the health of an Envoy that the agent does not have yet.
func NewHealth() *Health { return &Health{changed: make(chan struct{})} }

// Ready returns why Envoy does not take clients.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		return ErrDraining
	case h.silent != "":
		return errors.New("Envoy hangs: no answer from " + h.silent)
	case h.waits != "":
		return errors.New("waiting: " + h.waits)
	case !h.obtained:
		return errStarting
	}
	return nil
}

// SetObtained records that the agent has an Envoy. An agent may find one that it has to replace: if the agent were ready before
// that, an operator would reload the next edge, and both would drain at the same time.
func (h *Health) SetObtained() { h.change(func() { h.obtained = true }) }

// Takes says whether Envoy takes clients, and returns a channel that is closed when that changes.
func (h *Health) Takes() (reportagent.GatewayState, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report(), h.changed
}

func (h *Health) report() reportagent.GatewayState {
	return reportagent.GatewayState{Ready: h.serves(), Hang: h.silent}
}

func (h *Health) serves() bool { return !h.draining && h.waits == "" && h.silent == "" }

// State is for an observation of Envoy: whether it drains, and the parts that did not answer at the last one.
func (h *Health) State() (draining bool, silent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining, h.silent
}

// SetSilent records the parts of Envoy that do not answer; empty: all do.
func (h *Health) SetSilent(silent string) { h.change(func() { h.silent = silent }) }

// SetDraining says that Envoy is about to end, or that this is over.
func (h *Health) SetDraining(draining bool) { h.change(func() { h.draining = draining }) }

// SetWaiting says for what a gateway waits; empty: for nothing any more.
func (h *Health) SetWaiting(what string) { h.change(func() { h.waits = what }) }

func (h *Health) change(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.report()
	if change(); h.report() != before {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}
