package xds_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/xds"
)

// observer is a log that finds out whether the lock of a server is free while something is written.
type observer struct {
	logtest.Journal
	server *xds.Server
	locked atomic.Int64
}

func (o *observer) note() {
	free := make(chan struct{})
	go func() {
		o.server.Probe()
		close(free)
	}()
	select {
	case <-free:
	case <-time.After(patience):
		o.locked.Add(1)
	}
}

func (o *observer) Write(p []byte) (int, error) {
	o.note()
	return o.Journal.Write(p)
}

// TestNothingIsLoggedOrEmittedUnderTheLock: a log and a scrape may block, and every stream would wait.
func TestNothingIsLoggedOrEmittedUnderTheLock(t *testing.T) {
	c1 := workload("c1")
	b := newBed(t, c1)
	o := &observer{server: b.Server}
	b.SetLog(slog.New(slog.NewTextHandler(o, nil)))
	b.envoy(t, gateway).fetch(t, cds)
	e := b.envoy(t, edgeOf(c1))
	e.fetch(t, cds)
	b.SetGateways(inst.Gateways[:1])
	c1.Revoked = []string{"edge-a"}
	b.publish(c1)
	e.refusal(t)
	for _, line := range []string{"gateways changed", "denials changed", "stream closed"} {
		waitFor(t, func() error {
			if o.Count(line) == 0 {
				return fmt.Errorf("not logged: %s", line)
			}
			return nil
		})
	}
	values := make(chan prometheus.Metric)
	go func() {
		defer close(values)
		b.Metrics().Collect(values)
	}()
	for range values {
		o.note()
	}
	if n := o.locked.Load(); n > 0 {
		t.Errorf("%d lines or values were written under the lock", n)
	}
}
