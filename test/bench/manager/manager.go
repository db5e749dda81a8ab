// Package manager compares Cluster API's core manager, with its ClusterCache, over tunnels and over direct connections.
// The manager and all programs of Fairlead are real. Edges and apiservers are synthetic (test/bench/fleet); both
// subjects use the same apiservers, so that only the kubeconfigs differ. Its input is a number of rounds, each of which
// measures both subjects. Its output is the times to connect, the times of probes, and memory.
//
// Trade-offs: each turn starts a new manager for the Clusters of one namespace. The figures come from the manager's
// log, which reports how long connecting took, and when a probe began and succeeded.
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

// SizeEnv is the environment variable that overrides the number of workload clusters of each subject.
const SizeEnv = "MANAGER_CLUSTERS"

const (
	usualSize, quickSize = 1_000, 50
	// interval is ClusterCache's time between two probes. Each round measures three probes of each workload cluster.
	interval = 10 * time.Second
	probing  = 3 * interval
	// patience bounds waits that do not depend on the size, and patienceEach, for each workload cluster, waits that do.
	patience, patienceEach = 2 * time.Minute, 250 * time.Millisecond
)

// subjects are the names of the two connections that are compared, and of the namespaces of their Clusters.
var subjects = []string{"direct", "fairlead"}

// Run measures both subjects in turn in one installation.
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
		for _, subject := range subjects {
			one, err := w.turn(ctx, subject, round)
			if err != nil {
				return w.kept(fmt.Errorf("measuring the manager, %s: %w", subject, err))
			}
			if all[subject] == nil {
				all[subject] = &turns{}
			}
			all[subject].add(one)
			o.Printf("round %d, %-8s %s", round, subject, one)
		}
	}
	for _, subject := range subjects {
		all[subject].record(log, subject, size)
	}
	return nil
}

// kept adds the folder of the logs to an error.
func (w *world) kept(err error) error {
	logs, keeping := w.KeepLogs()
	return errors.Join(fmt.Errorf("%w; logs are in %s", err, logs), keeping)
}

// turn runs a manager for the Clusters of one subject, from its start until each Cluster has been probed a few times.
func (w *world) turn(ctx context.Context, subject string, round int) (turn, error) {
	name := fmt.Sprintf("manager-%s-%d", subject, round)
	begin := time.Now()
	// This level logs both lines of each probe.
	process, err := w.StartManager(ctx, name, subject, "--vmodule=cluster_accessor=6")
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
