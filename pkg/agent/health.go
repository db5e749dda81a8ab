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
	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// probes returns functions that take the agent's central locks, to detect a lock that is never released. They do not
// query Envoy, because the state of Envoy must not restart the agent.
func (a *Agent) probes() map[string]func() {
	probes := map[string]func(){
		"the state of the memberships": func() { a.eachStatus(func(s *status.Status) { s.Summary() }) },
		"the state of the xDS proxy":   func() { a.xds.Answers() },
		"the state of Envoy":           func() { a.envoy.GatewayState() },
	}
	if a.gateway != nil {
		probes["the table of tunnels"] = func() { a.gateway.Table.Stats() }
	}
	return probes
}

// serveHealth serves until ctx ends. /healthz: no lock or loop of the agent is stuck. /readyz: Envoy is ready,
// and each membership has a certificate and configuration; whether reverse tunnels are up is known at the gateways.
// /status: the state of the memberships.
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
		_ = encoder.Encode(a.state(r.Context())) // the client may have disconnected
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving health checks: %w", err)
	}
	return nil
}

// ready returns everything that keeps the agent from being ready; nil: it is ready.
func (a *Agent) ready(ctx context.Context) error {
	err := a.envoy.Ready()
	if _, silent := a.envoy.State(); errors.Is(err, status.ErrDraining) || silent != "" {
		return err
	}
	if missing := a.carries(ctx); missing != nil {
		return missing
	}
	return err
}

// carries returns what keeps Envoy from dialling and serving tunnels; nil: nothing does.
func (a *Agent) carries(ctx context.Context) error {
	errs := []error{a.config.admin().Ready(ctx)}
	all := a.memberships()
	for _, m := range all {
		// The supervisor did not start the edge for tunnels that it joined at run time.
		if m.joined == "" && !elsewhere(m, all) {
			errs = append(errs, m.ready())
			if e, ok := m.role.(*edge.Role); ok {
				errs = append(errs, e.Ready())
			}
		}
	}
	return errors.Join(errs...)
}

// obtainedCarries is carries for the Envoy that the agent has taken over or started. One that it has found and replaces
// drains for some time, and its tunnels end with it.
func (a *Agent) obtainedCarries(ctx context.Context) error {
	if err := a.envoy.Obtained(); err != nil {
		return err
	}
	return a.carries(ctx)
}

// elsewhere reports whether a joined membership carries the tunnel of m, because its Cluster was moved.
func elsewhere(m *membership, all []*membership) bool {
	e, ok := m.role.(*edge.Role)
	if !ok {
		return false
	}
	id, _, err := e.Expected()
	return err == nil && id != "" && slices.ContainsFunc(all, func(other *membership) bool {
		o, ok := other.role.(*edge.Role)
		return ok && other.joined != "" && o.HasTunnel() && other.ready() == nil && other.status.State().TunnelID == id
	})
}

// state is the answer to /status.
type state struct {
	Version     string          `json:"version"`
	Form        string          `json:"form"`
	Ready       bool            `json:"ready"`
	Reason      string          `json:"reason,omitempty"` // why it is not ready
	Memberships []status.Member `json:"memberships"`
	// Tunnels are the statistics of a gateway's tunnels.
	Tunnels *tunnels.Stats `json:"tunnels,omitempty"`
}

func (a *Agent) state(ctx context.Context) state {
	s := state{Version: version.Get(), Form: status.Form(a.config.External), Ready: true}
	if err := a.ready(ctx); err != nil {
		s.Ready, s.Reason = false, err.Error()
	}
	if a.gateway != nil {
		stats := a.gateway.Table.Stats()
		s.Tunnels = &stats
	}
	for _, m := range a.memberships() {
		state := m.status.State()
		state.Joined = m.joined
		s.Memberships = append(s.Memberships, state)
	}
	return s
}
