package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/probe"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// probes take the locks on which everything waits that the agent does: one that is never released is found. They do not ask
// Envoy, whose state must not have the agent restarted.
func (a *Agent) probes() map[string]func() {
	probes := map[string]func(){
		"the state of the memberships": func() { a.eachStatus(func(s *status) { s.summary() }) },
		"the state of the relay":       func() { a.relay.Answers() },
		"the state of Envoy":           func() { a.envoy.takes() },
	}
	if a.table != nil {
		probes["the table of tunnels"] = func() { a.table.Stats() }
	}
	return probes
}

// serveHealth answers until ctx ends: /healthz that no lock or loop of the agent is stuck, /readyz whether its Envoy carries tunnels for each
// membership, /status how all is.
func (a *Agent) serveHealth(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", a.beats)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := a.ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(a.state(r.Context())) // whoever asked may be gone
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving health checks: %w", err)
	}
	return nil
}

// ready returns all that keeps the agent from being ready.
func (a *Agent) ready(ctx context.Context) error {
	err := a.envoy.ready()
	if _, silent := a.envoy.state(); errors.Is(err, errDraining) || silent != "" {
		return err
	}
	if missing := a.carries(ctx); missing != nil {
		return missing
	}
	return err
}

// carries returns what keeps Envoy from carrying tunnels.
func (a *Agent) carries(ctx context.Context) error {
	errs := []error{a.config.admin().ready(ctx)}
	all := a.memberships()
	for _, m := range all {
		// What was given to an edge at run time is not what its supervisor has started it for.
		if m.joined == "" && !elsewhere(m, all) {
			errs = append(errs, m.ready())
		}
	}
	return errors.Join(errs...)
}

// elsewhere says whether the tunnel of a membership is carried by one that was joined: its Cluster was moved there.
func elsewhere(m *membership, all []*membership) bool {
	e, ok := m.role.(*edgeRole)
	if !ok {
		return false
	}
	id, _, err := e.expected()
	return err == nil && id != "" && slices.ContainsFunc(all, func(other *membership) bool {
		o, ok := other.role.(*edgeRole)
		return ok && other.joined != "" && o.sight.looks() && other.ready() == nil && other.status.state().TunnelID == id
	})
}

// state is the answer to /status.
type state struct {
	Version     string        `json:"version"`
	Form        string        `json:"form"`
	Ready       bool          `json:"ready"`
	Reason      string        `json:"reason,omitempty"` // why it is not
	Memberships []memberState `json:"memberships"`
	// Tunnels are those of a gateway; of one with several workers, what became of holes too.
	Tunnels *tunnels.Stats `json:"tunnels,omitempty"`
}

type memberState struct {
	Node      string        `json:"node,omitempty"`
	TunnelID  string        `json:"tunnelID,omitempty"`
	Joined    string        `json:"joined,omitempty"` // its name, if it was joined at run time
	NotAfter  *time.Time    `json:"certificateNotAfter,omitempty"`
	Connected bool          `json:"connected"`        // to the xds-server
	Cached    bool          `json:"cached,omitempty"` // Envoy has the configuration of before
	APIServer *probe.Result `json:"apiServer,omitempty"`
	LastError string        `json:"lastError,omitempty"`
}

func (a *Agent) state(ctx context.Context) state {
	s := state{Version: version.Get(), Form: form(a.config), Ready: true}
	if err := a.ready(ctx); err != nil {
		s.Ready, s.Reason = false, err.Error()
	}
	if a.table != nil {
		stats := a.table.Stats()
		s.Tunnels = &stats
	}
	for _, m := range a.memberships() {
		state := m.status.state()
		state.Joined = m.joined
		s.Memberships = append(s.Memberships, state)
	}
	return s
}

func (s *status) state() memberState {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := memberState{
		Node: s.subject.Node, TunnelID: s.subject.ID, Connected: s.connected, Cached: s.cached,
		APIServer: s.sight, LastError: s.newest(),
	}
	if !s.notAfter.IsZero() {
		m.NotAfter = &s.notAfter
	}
	return m
}
