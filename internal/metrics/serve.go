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
	// maxScrapes is how many scrapes are answered at a time: two for a pair of Prometheus servers, and two for
	// operators.
	maxScrapes = 4
)

// NewRegistry returns a registry with the metrics of every program: its version, the Go runtime and the process.
func NewRegistry(program Program) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), Build(program),
	)
	return r
}

// Build returns a metric that reports the program and its version.
func Build(program Program) *Set {
	s := &Set{}
	s.Observe(func(emit Emit) { emit("fairlead_build_info", 1, string(program), version.Get()) }, "fairlead_build_info")
	return s
}

// Listen opens a listener for Prometheus. It returns nil if the address is empty or "0", which turns metrics off.
func Listen(address string) (net.Listener, error) {
	if address == "" || address == "0" {
		return nil, nil //nolint:nilnil // no listener is not an error here
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for Prometheus: %w", err)
	}
	return listener, nil
}

// Serve answers /metrics over plain HTTP until ctx ends. It returns at once if the listener is nil. If some metrics
// cannot be gathered, it serves the others.
func Serve(ctx context.Context, listener net.Listener, from prometheus.Gatherer) error {
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes, Timeout: scrapeTime,
	}))
	server := &http.Server{
		Handler:        mux,
		ReadTimeout:    scrapeTime,
		WriteTimeout:   2 * scrapeTime,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
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
