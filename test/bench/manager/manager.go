// Package manager compares Cluster API's core manager with its ClusterCache over tunnels and over direct connections. The manager is the
// real program, as are all of Fairlead's; edges and apiservers are synthetic (test/bench/fleet), and the apiservers are the same ones for
// both: what differs is the kubeconfig alone. In go rounds in which the two take turns, out come the times to connect, those of probes,
// and memory.
//
// Trade-offs. The manager is started anew for each turn, for the Clusters of one namespace. Its figures come from its log, in which it
// says how long connecting took, and when a probe began and succeeded.
package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/bench/record"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// SizeEnv is how many workload clusters there are each way, instead of the usual number.
const SizeEnv = "MANAGER_CLUSTERS"

const (
	usualSize, quickSize = 1_000, 50
	// interval is that of ClusterCache between two probes; each round looks at three of each workload cluster.
	interval = 10 * time.Second
	probing  = 3 * interval
	// patience bounds what does not depend on the size, patienceEach what does.
	patience, patienceEach = 2 * time.Minute, 250 * time.Millisecond
)

// ways are the subjects: the namespace of their Clusters.
var ways = []string{"direct", "fairlead"}

// Run measures both ways in turns, in one installation.
func Run(ctx context.Context, log *record.Log, o record.Options) error {
	size := o.Rounds(usualSize, quickSize)
	if text := os.Getenv(SizeEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%s: %q is no number of workload clusters", SizeEnv, text)
		}
		size = n
	}
	rounds := o.Rounds(2, 1)
	ctx, cancel := context.WithTimeout(ctx, (2+time.Duration(rounds))*(patience+time.Duration(size)*patienceEach))
	defer cancel()
	w, err := newWorld(ctx, size)
	if err != nil {
		return err
	}
	defer w.Close(ctx)
	o.Printf("%d workload clusters each way", size)
	if err := errors.Join(w.prepare(ctx), ctx.Err()); err != nil {
		return w.kept(err)
	}
	all := map[string]*turns{}
	for round := range rounds {
		for _, way := range ways {
			one, err := w.turn(ctx, way, round)
			if err != nil {
				return w.kept(fmt.Errorf("measuring the manager, %s: %w", way, err))
			}
			if all[way] == nil {
				all[way] = &turns{}
			}
			all[way].add(one)
			o.Printf("round %d, %-8s %s", round, way, one)
		}
	}
	for _, way := range ways {
		all[way].record(log, way, size)
	}
	return nil
}

// kept adds to an error where the logs are.
func (w *world) kept(err error) error {
	logs, keeping := w.KeepLogs()
	return errors.Join(fmt.Errorf("%w; logs are in %s", err, logs), keeping)
}

// turn runs a manager for the Clusters of one way, from its start until each was probed a few times.
func (w *world) turn(ctx context.Context, way string, round int) (turn, error) {
	name := fmt.Sprintf("manager-%s-%d", way, round)
	begin := time.Now()
	// The level is that of the two lines about each probe.
	process, err := w.StartManager(ctx, name, way, "--vmodule=cluster_accessor=6")
	if err != nil {
		return turn{}, err
	}
	defer process.Kill()
	follower := &follower{path: w.LogFile(name)}
	defer follower.close()
	if err := proc.Wait(ctx, patience+time.Duration(w.size)*patienceEach, func(context.Context) error {
		if err := follower.read(); err != nil {
			return err
		}
		if n := len(follower.connected); n < w.size {
			return fmt.Errorf("%d of %d workload clusters are connected, %d attempts failed", n, w.size, follower.failed)
		}
		return nil
	}); err != nil {
		return turn{}, err
	}
	one := turn{allConnected: time.Since(begin)}
	before, err := proc.CPU(process.PID())
	if err != nil {
		return one, err
	}
	from := time.Now()
	if err := retry.Sleep(ctx, probing); err != nil {
		return one, err
	}
	after, err := proc.CPU(process.PID())
	if err != nil {
		return one, err
	}
	if err := follower.read(); err != nil {
		return one, err
	}
	rss, err := proc.RSS(process.PID())
	one.take(follower, from, rss, after-before)
	return one, err
}
