package path

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

var latencyUnits = map[string]string{"p50": "ms", "p99": "ms", "p99.9": "ms"}

// latency measures small requests on an open connection, first without other traffic, and then while a second
// connection downloads 1 GB after the other.
func latency(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	subjects, err := beginAll(ctx, p, options, link{}, contenders(options))
	if err != nil {
		return err
	}
	defer closeAll(subjects)
	span := time.Duration(options.Rounds(2, 1)) * time.Second
	units := map[string]string{"p99 under bulk/idle": "× idle"}
	for _, load := range []string{"idle", "bulk"} {
		for name, unit := range latencyUnits {
			units[name+" "+load] = unit
		}
	}
	units["p50 idle over direct"] = "ms"
	floor := 0.0
	all, err := alternate(
		ctx,
		options,
		subjects,
		options.Rounds(5, 1),
		func(ctx context.Context, s *subject) (map[string]float64, error) {
			idle, err := quantiles(ctx, p, s, span)
			if err != nil {
				return nil, err
			}
			stop, err := busy(ctx, p, s, 1)
			if err != nil {
				return nil, err
			}
			defer stop()
			bulk, err := quantiles(ctx, p, s, span)
			if err != nil {
				return nil, err
			}
			if s.name == "direct" {
				floor = idle["p50"]
			}
			figures := map[string]float64{
				"p99 under bulk/idle":  bulk["p99"] / idle["p99"],
				"p50 idle over direct": idle["p50"] - floor,
			}
			for name := range latencyUnits {
				figures[name+" idle"], figures[name+" bulk"] = idle[name], bulk[name]
			}
			return figures, nil
		},
	)
	if err != nil {
		return err
	}
	keep(log, options, subjects, all, units, nil)
	return nil
}

// quantiles measures small requests for a while, and returns the quantiles of latencyUnits.
func quantiles(ctx context.Context, p *place, s *subject, span time.Duration) (map[string]float64, error) {
	client, err := newClient(p, s)
	if err != nil {
		return nil, err
	}
	defer client.close()
	took, err := client.latencies(ctx, span)
	if err != nil {
		return nil, err
	}
	return map[string]float64{
		"p50":   record.Quantile(took, 0.5),
		"p99":   record.Quantile(took, 0.99),
		"p99.9": record.Quantile(took, 0.999),
	}, nil
}

// busy downloads with several connections until it is stopped. It returns when bytes arrive.
func busy(ctx context.Context, p *place, s *subject, streams int) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var bytes atomic.Int64
	var running sync.WaitGroup
	client, err := newClient(p, s)
	if err != nil {
		cancel()
		return nil, err
	}
	for range streams {
		running.Go(func() { _ = client.stream(ctx, &bytes) })
	}
	stop = func() {
		cancel()
		running.Wait()
		client.close()
	}
	if err := started(ctx, &bytes); err != nil {
		stop()
		return nil, err
	}
	pause(ctx, 300*time.Millisecond)
	return stop, nil
}

// connections measures new connections, each with a TLS handshake and one small request, from eight clients at the same
// time.
func connections(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	subjects, err := beginAll(ctx, p, options, link{}, contenders(options))
	if err != nil {
		return err
	}
	defer closeAll(subjects)
	span := time.Duration(options.Rounds(4, 1)) * time.Second
	all, err := alternate(
		ctx,
		options,
		subjects,
		options.Rounds(5, 1),
		func(ctx context.Context, s *subject) (map[string]float64, error) {
			return dials(ctx, p, s, span)
		},
	)
	if err != nil {
		return err
	}
	keep(log, options, subjects, all, map[string]string{"new connections": "1/s"}, nil)
	return nil
}

func dials(ctx context.Context, p *place, s *subject, span time.Duration) (map[string]float64, error) {
	const workers = 8
	config, err := clientTLS(p)
	if err != nil {
		return nil, err
	}
	var done atomic.Int64
	var running sync.WaitGroup
	errs := make(chan error, workers)
	begin := time.Now()
	for range workers {
		running.Go(func() {
			for time.Since(begin) < span {
				if err := once(ctx, s, config); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	running.Wait()
	return map[string]float64{"new connections": float64(done.Load()) / time.Since(begin).Seconds()}, drainErrors(errs)
}

// once dials, sends a small request and closes the connection.
func once(ctx context.Context, s *subject, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer raw.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline)
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("GET /small HTTP/1.1\r\nHost: " + serverName + "\r\n\r\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 4096))
	return err
}
