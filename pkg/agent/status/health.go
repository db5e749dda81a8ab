package status

import (
	"errors"
	"sync"

	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
)

// ErrDraining is the reason why a draining Envoy is not ready.
var ErrDraining = errors.New("draining, and about to end")

var errStarting = errors.New("starting: it has no Envoy yet")

// Health records whether Envoy accepts clients. It is safe for concurrent use.
type Health struct {
	mu       sync.Mutex
	obtained bool // this agent has an Envoy, and will not replace the one that it found
	draining bool
	waits    string        // what a gateway waits for before it accepts clients; empty: nothing
	silent   string        // the parts of Envoy that do not answer; empty: none
	changed  chan struct{} // closed when the result of Takes changes
}

// NewHealth returns the health of an Envoy that has not been started yet.
func NewHealth() *Health { return &Health{changed: make(chan struct{})} }

// Ready returns why Envoy does not accept clients; nil: it does.
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

// SetObtained records that the agent has an Envoy. Before that the agent may have to replace an Envoy that it found:
// if it were ready, an operator would reload the next edge, and both would drain at the same time.
func (h *Health) SetObtained() { h.change(func() { h.obtained = true }) }

// Obtained returns nil once SetObtained was called.
func (h *Health) Obtained() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.obtained {
		return errStarting
	}
	return nil
}

// GatewayState returns whether Envoy accepts clients, and a channel that is closed when that changes.
func (h *Health) GatewayState() (reportagent.GatewayState, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.report(), h.changed
}

func (h *Health) report() reportagent.GatewayState {
	return reportagent.GatewayState{Ready: h.serves(), Hang: h.silent}
}

func (h *Health) serves() bool { return !h.draining && h.waits == "" && h.silent == "" }

// State returns whether Envoy drains, and the parts that did not answer at the last observation.
func (h *Health) State() (draining bool, silent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining, h.silent
}

// SetSilent records the parts of Envoy that do not answer; empty: all answer.
func (h *Health) SetSilent(silent string) { h.change(func() { h.silent = silent }) }

// SetDraining records whether Envoy is draining.
func (h *Health) SetDraining(draining bool) { h.change(func() { h.draining = draining }) }

// SetWaiting records what a gateway waits for; empty: nothing.
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
