package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
)

// healthTime bounds a request of /healthz or /readyz, and the shutdown of their server.
const healthTime = 5 * time.Second

// listenHealth returns nil if health checks are turned off.
func (s *server) listenHealth() (net.Listener, error) {
	if s.healthListen == "0" {
		return nil, nil //nolint:nilnil // no listener is not an error here
	}
	listener, err := net.Listen("tcp", s.healthListen)
	if err != nil {
		return nil, fmt.Errorf("listening for health checks: %w", err)
	}
	return listener, nil
}

// serveHealth answers health checks until ctx ends.
func (s *server) serveHealth(ctx context.Context, listener net.Listener) error {
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", s.beats)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(time.Now()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	h := &http.Server{Handler: mux, ReadTimeout: healthTime, WriteTimeout: healthTime}
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving health checks: %w", err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime)
	defer cancel()
	return h.Shutdown(ctx)
}

// probes returns probes that take the locks on which all work of the server depends, so that a lock which is never
// released is found.
func (s *server) probes(hub *reporthub.Hub) map[string]func() {
	return map[string]func(){
		"the state of the configuration": func() { s.ads.Tunnel("") },
		"the state of reports":           hub.Probe,
	}
}

// ready returns an error that names what the server lacks before it can serve clients.
func (s *server) ready(now time.Time) error {
	if !s.ads.Published() {
		return errors.New("the objects of the management cluster have not been read yet")
	}
	identity, err := s.store.Identity()
	if err != nil {
		return err
	}
	if now.After(identity.NotAfter()) {
		return errors.New("the server's own certificate has expired")
	}
	return nil
}
