// Package networks measures the way of a kube-apiserver to a remote network: through the Envoys of Fairlead, through
// konnectivity in both of its modes, and directly, in turns in one run. etcd, kube-apiservers and Envoys are real; the
// kubelet in the remote network has no containers. Each way has a kube-apiserver of its own, because the egress
// selector of an apiserver has one way to its nodes. Output: a figure for each way, and how many times better than
// konnectivity's better mode Fairlead is, beside the goal.
//
// Trade-offs: all programs share the cores of one machine, so a figure contains the work of the client, the apiserver
// and the kubelet. Nothing here fails because a figure is low.
package networks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// longest bounds a run.
const longest = 40 * time.Minute

// benchmark is one benchmark of the suite. Options.Only selects it by its name.
type benchmark struct {
	name string
	run  func(ctx context.Context, r *run) error
}

// benchmarks are in the order in which they run. The one that kills edges is the last.
var benchmarks = []benchmark{
	{"throughput", throughput},
	{"opens", opens},
	{"execs", execs},
	{"stalled", stalled},
	{"followed", followed},
	{"kill", kills},
}

// run is one run of the suite.
type run struct {
	record.Options
	log      *record.Log
	world    *world
	subjects []*subject
	figures  []figure
}

// Run runs the selected benchmarks. If one fails, the others still run.
func Run(ctx context.Context, log *record.Log, options record.Options) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	w, err := newWorld(ctx)
	if err != nil {
		return err
	}
	defer w.close(ctx)
	r := &run{Options: options, log: log, world: w}
	begin := time.Now()
	if r.subjects, err = w.beginAll(ctx, options); err != nil {
		return w.kept(err)
	}
	options.Printf("== starting took %s", time.Since(begin).Round(time.Second))
	var failed error
	for _, b := range benchmarks {
		if !options.Only.MatchString(b.name) || ctx.Err() != nil {
			continue
		}
		options.Printf("== %s", b.name)
		begin := time.Now()
		if err := b.run(ctx, r); err != nil {
			options.Printf("%s: %v", b.name, err)
			failed = errors.Join(failed, fmt.Errorf("%s: %w", b.name, err))
		}
		options.Printf("== %s took %s", b.name, time.Since(begin).Round(time.Second))
	}
	r.compare()
	if failed != nil {
		return w.kept(failed)
	}
	return nil
}
