package path

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// each starts all contenders over one link and measures them in turn. A quick run measures only the most important
// ones.
func each(
	ctx context.Context, p *place, log *record.Log, options record.Options, l link, rounds int,
	units, params map[string]string, measure func(ctx context.Context, s *subject) (map[string]float64, error),
) error {
	compared := contenders(options)
	if options.Quick {
		compared = slices.DeleteFunc(compared, func(w contender) bool { return slices.Contains(onlyInFull, w.name) })
	}
	subjects, err := beginAll(ctx, p, options, l, compared)
	if err != nil {
		return err
	}
	defer closeAll(subjects)
	all, err := alternate(ctx, options, subjects, rounds, measure)
	if err != nil {
		return err
	}
	keep(log, options, subjects, all, units, params)
	return nil
}

// roundTrips adds delays between edge and gateway, or between client and apiserver for the direct connection. It
// measures the throughput of one stream and the latency of a small request.
func roundTrips(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	trips := []int{1, 50, 100, 200}
	if options.Quick {
		trips = []int{50}
	}
	for _, ms := range trips {
		l := link{delay: time.Duration(ms) * time.Millisecond / 2}
		err := each(
			ctx,
			p,
			log,
			options,
			l,
			options.Rounds(3, 1),
			map[string]string{"throughput by round trip": "MB/s", "p50 by round trip": "ms"},
			map[string]string{
				"round trip (ms)": strconv.Itoa(ms),
			},
			func(ctx context.Context, s *subject) (map[string]float64, error) {
				figures, err := download(ctx, p, s, 1, time.Duration(options.Rounds(3, 2))*time.Second)
				if err != nil {
					return nil, err
				}
				took, err := quantiles(ctx, p, s, time.Second)
				return map[string]float64{"throughput by round trip": figures["throughput"], "p50 by round trip": took["p50"]}, err
			},
		)
		if err != nil {
			return fmt.Errorf("with %d ms: %w", ms, err)
		}
	}
	return nil
}

// uplinks limits the bandwidth from edge to gateway, and measures a request on a new connection while four downloads
// fill it.
func uplinks(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	const (
		downloads = 4
		mbit      = 1e6 / 8
	)
	rates := []int{2, 10, 100}
	if options.Quick {
		rates = []int{10}
	}
	for _, rate := range rates {
		l := link{delay: 10 * time.Millisecond, rate: float64(rate) * mbit}
		err := each(
			ctx,
			p,
			log,
			options,
			l,
			options.Rounds(3, 1),
			map[string]string{"fresh request": "s", "slowest fresh request": "s"},
			map[string]string{
				"uplink (Mbit/s)": strconv.Itoa(rate),
			},
			func(ctx context.Context, s *subject) (map[string]float64, error) {
				stop, err := busy(ctx, p, s, downloads)
				if err != nil {
					return nil, err
				}
				defer stop()
				pause(ctx, 3*time.Second) // until all buffers are full
				return fresh(ctx, p, s)
			},
		)
		if err != nil {
			return fmt.Errorf("with %d Mbit/s: %w", rate, err)
		}
	}
	return nil
}

// fresh measures a request on a new connection.
func fresh(ctx context.Context, p *place, s *subject) (map[string]float64, error) {
	config, err := clientTLS(p)
	if err != nil {
		return nil, err
	}
	var took []float64
	for range 3 {
		begin := time.Now()
		if err := once(ctx, s, config); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin).Seconds())
	}
	return map[string]float64{"fresh request": record.Median(took), "slowest fresh request": record.Quantile(took, 1)}, nil
}

// idle counts the bytes between an edge and a gateway without client connections: right after the last one and, in a
// full run, once the gateway has closed the reverse tunnel that it used.
func idle(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	const (
		settled = 2 * time.Second
		closed  = 70 * time.Second // is longer than a gateway keeps a reverse tunnel without connections
	)
	subjects, err := beginAll(ctx, p, options, link{delay: time.Microsecond}, contenders(options)[1:2])
	if err != nil {
		return err
	}
	defer closeAll(subjects)
	phases := []struct {
		state      string
		wait, span time.Duration
	}{
		{"one was just used", settled, 20 * time.Second},
		{"none was used for a minute", closed, 2 * time.Minute},
	}
	for _, phase := range phases[:options.Rounds(2, 1)] {
		pause(ctx, phase.wait)
		for _, s := range subjects {
			from := s.relays[0].passed.Load()
			pause(ctx, phase.span)
			kb := float64(s.relays[0].passed.Load()-from) / 1000 * (24 * time.Hour).Seconds() / phase.span.Seconds()
			log.Add(
				record.Result{
					Name:    "idle edge",
					Subject: s.name,
					Unit:    "KB/day of TCP payload",
					Value:   kb,
					Params:  map[string]string{"two tunnels to one gateway": phase.state},
				},
			)
			options.Printf("%s, %s: %.1f KB a day", s.name, phase.state, kb)
		}
	}
	return nil
}
