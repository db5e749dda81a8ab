package path

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// measured holds the samples of one subject, one per round, and the samples of the direct connection in the same
// rounds.
type measured struct {
	values, ratios []float64
}

// peerRounds bounds the rounds in which a peer is measured. No goal is a ratio to one.
const peerRounds = 5

// alternate measures each required subject once in every round, the direct connection first, and each peer in some of
// the rounds, evenly spread. It returns all samples. A measurement returns several figures by name. A peer that fails
// is reported and skipped from then on; the required subjects must not fail.
func alternate(
	ctx context.Context, options record.Options, subjects []*subject, rounds int,
	measure func(ctx context.Context, s *subject) (map[string]float64, error),
) (map[string]map[string]*measured, error) {
	all, broken := map[string]map[string]*measured{}, map[*subject]bool{}
	apart := (rounds + peerRounds - 1) / peerRounds // between two rounds of the peers
	for round := range rounds {
		var baseline map[string]float64
		for _, s := range subjects {
			peer := !slices.Contains(required, s.name)
			if broken[s] || peer && round%apart != 0 {
				continue
			}
			figures, err := measure(ctx, s)
			if err != nil && peer && ctx.Err() == nil {
				options.Printf("left out: %s: %v", s.name, err)
				broken[s] = true
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("measuring %s: %w", s.name, err)
			}
			if baseline == nil {
				baseline = figures
			}
			if all[s.name] == nil {
				all[s.name] = map[string]*measured{}
			}
			for name, v := range figures {
				m := all[s.name][name]
				if m == nil {
					m = &measured{}
					all[s.name][name] = m
				}
				m.values = append(m.values, v)
				if baseline[name] != 0 {
					m.ratios = append(m.ratios, v/baseline[name])
				}
			}
		}
	}
	return all, nil
}

// keep records the samples of alternate: each figure under its name, and its ratio to the direct connection as
// "NAME/direct".
func keep(
	log *record.Log, options record.Options, subjects []*subject, all map[string]map[string]*measured,
	units map[string]string, params map[string]string,
) {
	for _, s := range subjects {
		for _, name := range slices.Sorted(maps.Keys(units)) {
			unit := units[name]
			m := all[s.name][name]
			if m == nil {
				continue
			}
			log.Add(record.Result{Name: name, Subject: s.name, Params: params, Unit: unit, Samples: m.values})
			ratio := ""
			if s.name != "direct" && len(m.ratios) > 0 {
				log.Add(record.Result{Name: name + "/direct", Subject: s.name, Params: params, Unit: "× direct", Samples: m.ratios})
				ratio = fmt.Sprintf(" (%.2f x direct)", record.Median(m.ratios))
			}
			options.Printf("%-18s %-28s %s%.4g %s%s", s.name, name, setting(params), record.Median(m.values), unit, ratio)
		}
	}
}

// setting describes the parameters of a figure in words.
func setting(params map[string]string) (text string) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		text += params[name] + " " + name + ": "
	}
	return text
}

// downloadRounds is how often each number of streams is measured. The ratio of two subjects in one round varies by a
// quarter, so the median of five rounds varied from 0.88 to 0.96 with nothing changed.
const downloadRounds = 15

// throughput measures 1, 8 and 64 streams, and the CPU time of a GB.
func throughput(ctx context.Context, p *place, log *record.Log, options record.Options) error {
	subjects, err := beginAll(ctx, p, options, link{}, contenders(options))
	if err != nil {
		return err
	}
	defer closeAll(subjects)
	span := time.Duration(options.Rounds(2, 1)) * time.Second
	for _, streams := range []int{1, 8, 64} {
		all, err := alternate(
			ctx,
			options,
			subjects,
			options.Rounds(downloadRounds, 1),
			func(ctx context.Context, s *subject) (map[string]float64, error) {
				return download(ctx, p, s, streams, span)
			},
		)
		if err != nil {
			return err
		}
		keep(
			log, options, subjects, all, map[string]string{"throughput": "MB/s", "cpu": "CPU s/GB", "cpu-all": "CPU s/GB"},
			map[string]string{"streams": strconv.Itoa(streams)},
		)
	}
	return nil
}

// download measures some streams for a while: MB/s, CPU seconds per GB of everything between client and apiserver, and
// CPU seconds per GB of everything.
func download(ctx context.Context, p *place, s *subject, streams int, span time.Duration) (map[string]float64, error) {
	const waitIdle = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var bytes atomic.Int64
	var running sync.WaitGroup
	errs := make(chan error, streams)
	for range streams {
		client, err := newClient(p, s)
		if err != nil {
			return nil, err
		}
		defer client.close()
		running.Go(func() {
			if err := client.stream(ctx, &bytes); err != nil && ctx.Err() == nil {
				errs <- err
				cancel()
			}
		})
	}
	if err := started(ctx, &bytes); err != nil {
		cancel()
		running.Wait()
		return nil, errors.Join(err, drainErrors(errs))
	}
	pause(ctx, waitIdle)
	everybody := []int{os.Getpid()} // the client and its descendants: the apiserver and the subjects
	begin, from, cpu, all := time.Now(), bytes.Load(), cpuSeconds(s.pids()), cpuSeconds(everybody)
	pause(ctx, span)
	seconds, gb := time.Since(begin).Seconds(), float64(bytes.Load()-from)/1e9
	figures := map[string]float64{
		"throughput": gb * 1000 / seconds,
		"cpu":        (cpuSeconds(s.pids()) - cpu) / gb,
		"cpu-all":    (cpuSeconds(everybody) - all) / gb,
	}
	cancel()
	running.Wait()
	return figures, drainErrors(errs)
}

// started waits for the first byte.
func started(ctx context.Context, bytes *atomic.Int64) error {
	return until(ctx, "the first byte comes", func() error {
		if bytes.Load() == 0 {
			return errors.New("none has")
		}
		return nil
	})
}

func drainErrors(errs chan error) error {
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func pause(ctx context.Context, span time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(span):
	}
}
