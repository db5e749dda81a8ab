// Package path measures the way of the data: real Envoys with the configuration of pkg/envoy and real certificates, against a direct
// connection and against peers, in turn in one run. Each figure comes with its ratio to the direct connection of the same round.
package path

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// benchmark is one of the suite, for Options.Only.
type benchmark struct {
	name string
	run  func(ctx context.Context, p *place, log *record.Log, options record.Options) error
}

var benchmarks = []benchmark{
	{"throughput", throughput},
	{"latency", latency},
	{"connections", connections},
	{"stalled", stalledReaders},
	{"watches", watches},
	{"roundtrips", roundTrips},
	{"uplinks", uplinks},
	{"idle", idle},
}

// Run runs the benchmarks that the options name. One that fails does not keep the others from running.
func Run(ctx context.Context, log *record.Log, options record.Options) error {
	p, err := newPlace(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	var failed error
	for _, b := range benchmarks {
		if !options.Only.MatchString(b.name) || ctx.Err() != nil {
			continue
		}
		options.Printf("== %s", b.name)
		begin := time.Now()
		if err := b.run(ctx, p, log, options); err != nil {
			options.Printf("%s: %v", b.name, err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", b.name, err))
		}
		options.Printf("== %s took %s", b.name, time.Since(begin).Round(time.Second))
	}
	return failed
}
