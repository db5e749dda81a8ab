// Package scale measures how Fairlead grows with the number of workload clusters. A kube-apiserver, the controller, the
// xds-server, and a gateway-agent with its Envoy are real and run in separate processes. Only the edges are synthetic
// (test/synthetic), each with an in-memory apiserver behind it. Its input is numbers of workload clusters. Its output
// is figures of each component at each size, and how they grow.
//
// The number of files that one process may open bounds the sizes: each tunnel is a socket of the gateway's Envoy and
// one of this process. RunForward has its edges in other processes.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// SizesEnv is the environment variable that overrides the sizes, for example 100,1000.
const SizesEnv = "SCALE_SIZES"

// sizes returns the numbers of workload clusters: the usual ones, unless the environment or the options have others.
func sizes(o record.Options, usual ...int) ([]int, error) {
	text := os.Getenv(SizesEnv)
	switch {
	case text == "" && o.Quick:
		return []int{100}, nil
	case text == "":
		return usual, nil
	}
	var all []int
	for _, s := range strings.Split(text, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is no number of workload clusters", SizesEnv, s)
		}
		all = append(all, n)
	}
	return all, nil
}

// Run measures each size in a separate installation, and then how the figures grow. If one size fails, the others are
// still measured.
func Run(ctx context.Context, log *record.Log, o record.Options) error {
	all, err := sizes(o, 100, 1_000, 10_000)
	if err != nil {
		return err
	}
	growth := growth{}
	var failed error
	for _, n := range all {
		r := &results{log: log, out: o, size: n, growth: growth}
		if err := measure(ctx, r, n, o.Rounds(100, 20)); err != nil {
			o.Printf("%6d  FAILED: %v", n, err)
			failed = errors.Join(failed, fmt.Errorf("measuring %d workload clusters: %w", n, err))
		}
	}
	for _, g := range growth.fits() {
		o.Printf("%-14s %-60s grows %.1f times, %s", g.subject, g.name, g.times, g.order)
		log.Add(
			record.Result{
				Name:    "growth",
				Subject: g.subject,
				Unit:    "times",
				Value:   g.times,
				Text:    g.order,
				Params:  map[string]string{"figure": g.name},
			},
		)
	}
	return failed
}

// results are the results of one size.
type results struct {
	log    *record.Log
	out    record.Options
	size   int
	growth growth
}

// add adds a figure of the whole installation.
func (r *results) add(name, unit string, value float64, samples ...float64) {
	r.of("fairlead", name, unit, value, samples...)
}

// of adds a figure of one component.
func (r *results) of(subject, name, unit string, value float64, samples ...float64) {
	r.log.Add(record.Result{
		Name: name, Subject: subject, Unit: unit, Value: value, Samples: samples,
		Params: map[string]string{"clusters": strconv.Itoa(r.size)},
	})
	r.out.Printf("%6d  %-14s %-60s %12.3f %s", r.size, subject, name, value, unit)
	r.growth.note(figure{name, subject}, r.size, value)
}

// times adds the median and the 99th percentile of durations.
func (r *results) times(name string, all []time.Duration) {
	if len(all) == 0 {
		return
	}
	var samples []float64
	for _, d := range all {
		samples = append(samples, float64(d)/float64(time.Millisecond))
	}
	r.add(name+" p50", "ms", percentile(samples, .5), samples...)
	r.add(name+" p99", "ms", percentile(samples, .99))
}

// tunnels returns how many tunnels each edge keeps, limited by the number of sockets of a process.
func tunnels(n int) int {
	if limit, ok := openFiles(); ok && 2*n+reserve > limit {
		return 1
	}
	return 2
}

// connections returns the number of workload clusters for which the sockets suffice, with three clients each.
func connections(n, perEdge int) int {
	limit, ok := openFiles()
	if !ok {
		return n
	}
	return max(0, min(n, (limit-n*perEdge-reserve)/clientsEach))
}

// reserve is how many files a process has open besides the sockets that are counted.
const reserve = 1_000

// openFiles returns how many files this process may have open; false: that is not known.
func openFiles() (limit int, ok bool) {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 0, false
	}
	return int(l.Cur), true
}
