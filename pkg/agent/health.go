package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// serveHealth answers until ctx ends: /healthz that the agent runs, /readyz whether its Envoy has its configuration.
func serveHealth(ctx context.Context, listener net.Listener, adminSocket string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := (admin{socket: adminSocket}).ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving health checks: %w", err)
	}
	return nil
}
