package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead/fairlead/internal/version"
)

const (
	// scrapeTime bounds one answer, and the shutdown.
	scrapeTime = 10 * time.Second
	// maxScrapes is how many are answered at a time: two Prometheus of a pair, and somebody who looks.
	maxScrapes = 4
)

// NewRegistry returns a registry with what each program has: its version, Go's runtime and the process.
func NewRegistry(program Program) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), Build(program))
	return r
}

// Build says which program of which version this is.
func Build(program Program) *Set {
	s := &Set{}
	s.Look(func(emit Emit) { emit("fairlead_build_info", 1, string(program), version.Get()) }, "fairlead_build_info")
	return s
}

// Listen listens for Prometheus; nil for an address that is empty or "0": nothing is to be served.
func Listen(address string) (net.Listener, error) {
	if address == "" || address == "0" {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for Prometheus: %w", err)
	}
	return listener, nil
}

// Serve answers /metrics, in plain HTTP, until ctx ends. Without a listener it returns at once. Of figures that can't be had it serves the
// others.
func Serve(ctx context.Context, listener net.Listener, from prometheus.Gatherer) error {
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes, Timeout: scrapeTime,
	}))
	server := &http.Server{Handler: mux, ReadTimeout: scrapeTime, WriteTimeout: 2 * scrapeTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving Prometheus: %w", err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scrapeTime)
	defer cancel()
	return server.Shutdown(ctx)
}
