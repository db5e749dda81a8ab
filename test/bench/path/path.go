// Package path measures the data path: real Envoys with the configuration of pkg/envoy and real certificates, compared
// with a direct connection and with peers, in turn in one run. Each figure comes with its ratio to the direct
// connection in the same round.
package path

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// benchmark is one benchmark of the suite. Options.Only selects it by its name.
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

// Run runs the selected benchmarks. If one fails, the others still run.
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
