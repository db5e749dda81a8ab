package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
)

const (
	// defaultInterval notices an outage of a second, and costs an apiserver two requests a second.
	defaultInterval = time.Second
	// minInterval keeps the observation from being load of its own.
	minInterval = 100 * time.Millisecond
	// defaultSettle is longer than the time in which edges open tunnels to a new gateway.
	defaultSettle = 10 * time.Second
	// defaultCommandTime exceeds the upgrade of a large installation.
	defaultCommandTime = 2 * time.Hour
)

// throughSuite is the name of the report for CI systems.
const throughSuite = "fairlead test through"

// throughFlags are the flags of test through.
type throughFlags struct {
	clusterFlags
	allowed                   int
	interval, settle, timeout time.Duration
}

func throughCommand(root func() *cobra.Command) *cobra.Command {
	f := throughFlags{clusterFlags: clusterFlags{tree: root}}
	cmd := &cobra.Command{
		Use:   "through [CLUSTER...] -- COMMAND [ARG...]",
		Short: "Observe requests and connections to workload clusters while a command runs",
		Long: strings.TrimSpace(`
Run a command, such as an upgrade, and observe the tunnels of the named Clusters, or of each one of the
namespace that has or wants a tunnel, while it runs: fresh requests, a watch, and a connection that stays
open. Count failed requests, broken watches and broken connections, and measure the longest outage. After a
failure, "fairlead check" looks for the broken hop, at most every five seconds. The observation continues for
a short time after the command.

The command starts only when every Cluster answers. Otherwise the report names those that do not, and the
broken hop. The command has its own standard input; with -o json or yaml, its standard output goes to the error
stream.

Needs: what "fairlead check" needs, and get on Tunnels and Secrets of the namespace.
Changes: nothing but what the command changes. --bundle and --junit create files.
Exit codes: 0 the command succeeded, with no more than --allowed failures; 1 there were more, or a Cluster
does not answer before the command, or at the end of the observation; 2 the command line is invalid. If the
command fails, its exit code.`),
		Example: "  fairlead test through -n prod c1 c2 -- helm upgrade fairlead oci://example.com/fairlead " +
			"--wait --timeout=30m\n" +
			"  fairlead test through -A --allowed=2 -- sh -c 'kubectl -n fairlead-system rollout restart statefulset/gateway " +
			"&& kubectl -n fairlead-system rollout status statefulset/gateway'",
		Args: func(cmd *cobra.Command, args []string) error { return f.check(cmd.ArgsLenAtDash(), args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			at := cmd.ArgsLenAtDash()
			return f.run(cmd, args[:at], args[at:])
		},
	}
	f.addTo(cmd)
	set := cmd.Flags()
	set.IntVar(&f.allowed, "allowed", 0, "number of failures of all Clusters together that are allowed")
	set.DurationVar(&f.interval, "interval", defaultInterval, "time between two requests to a Cluster")
	set.DurationVar(&f.settle, "settle", defaultSettle, "how long to observe after the end of the command")
	set.DurationVar(&f.timeout, "timeout", defaultCommandTime, "time limit for the command, which is then ended")
	return cmd
}

// check validates the command line. dash is the number of arguments before "--"; -1: there is none.
func (f *throughFlags) check(dash int, args []string) error {
	switch {
	case dash < 0 || dash == len(args):
		return errors.New("give a command after --, such as -- helm upgrade fairlead oci://example.com/fairlead")
	case f.allowed < 0:
		return errors.New("--allowed must not be less than 0")
	case f.interval < minInterval:
		return fmt.Errorf("--interval: %s is less than %s", f.interval, minInterval)
	case f.settle < 0 || f.timeout <= 0:
		return errors.New("--settle must not be less than 0, and --timeout must be more than 0")
	}
	return f.validate(args[:dash])
}

// throughReport is the result of test through.
type throughReport struct {
	Status   check.Status     `json:"status"`
	Command  commandRun       `json:"command"`
	Failed   int              `json:"failed"` // of all Clusters
	Allowed  int              `json:"allowed"`
	Clusters []clusterTraffic `json:"clusters"`
}

// commandRun is how the command of the user ran.
type commandRun struct {
	Args     []string `json:"args"`
	ExitCode int      `json:"exitCode"`
	Seconds  float64  `json:"seconds"`
	Error    string   `json:"error,omitempty"` // why it did not start
}

// clusterTraffic is what was observed of one Cluster.
type clusterTraffic struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	traffic.Record
}

func (f *throughFlags) run(cmd *cobra.Command, names, argv []string) error {
	if err := f.Validate(); err != nil {
		return err
	}
	m, err := f.Open()
	if err != nil {
		return err
	}
	keys, err := f.clusters(cmd.Context(), m, names)
	if err != nil {
		return err
	}
	checker, done := f.Checker(cmd.Context(), m)
	defer done()
	checker.Via = f.via
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	observers, unanswering := f.start(ctx, m, checker, keys)
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("sending the first requests: %w", context.Cause(cmd.Context()))
	}
	if slices.ContainsFunc(unanswering, func(failure *traffic.Failure) bool { return failure != nil }) {
		stop()
		return f.reportNotStarted(cmd, keys, unanswering, argv)
	}
	report := throughReport{Allowed: f.allowed, Clusters: make([]clusterTraffic, len(keys))}
	var observing sync.WaitGroup
	for i, key := range keys {
		observing.Go(func() { report.Clusters[i] = clusterTraffic{key.Namespace, key.Name, observers[i].Run(ctx)} })
	}
	report.Command = f.runCommand(cmd, argv)
	f.waitSettled(cmd.Context())
	stop()
	observing.Wait()
	return f.report(cmd, &report)
}

// start starts an Observer for each Cluster. For one that does not answer, it returns the failure instead.
func (f *throughFlags) start(
	ctx context.Context, m *management.Client, checker *check.Checker, keys []client.ObjectKey,
) ([]*traffic.Observer, []*traffic.Failure) {
	observers, unanswering := make([]*traffic.Observer, len(keys)), make([]*traffic.Failure, len(keys))
	var starting sync.WaitGroup
	for i, key := range keys {
		starting.Go(func() {
			began := time.Now()
			look := func(ctx context.Context) check.Report { return checker.Check(ctx, key) }
			w, err := readWays(ctx, m, key, f.via)
			var target *traffic.Target
			if err == nil {
				target, err = w.own()
			}
			if err == nil {
				observers[i] = &traffic.Observer{Target: target, Interval: f.interval, Check: look}
				err = observers[i].Start(ctx)
			}
			if err != nil {
				unanswering[i] = failureAtStart(began, err, look(ctx))
			}
		})
	}
	starting.Wait()
	return observers, unanswering
}

// failureAtStart is the failure of a Cluster that does not answer before the command.
func failureAtStart(at time.Time, err error, report check.Report) *traffic.Failure {
	f := &traffic.Failure{
		At: at.UTC(), Kind: traffic.KindRequest, Error: err.Error(), Detail: "fairlead check finds no broken hop",
	}
	if hop := report.Deciding(); hop != nil && hop.Status == check.Broken {
		f.Hop, f.Detail, f.Cause, f.Cure = hop.ID, hop.Detail, hop.Cause, hop.Cure
	}
	return f
}

// notStarted is why the command of the user did not run.
const notStarted = "the command was not started, because a Cluster does not answer"

// reportNotStarted reports the Clusters that do not answer before the command. Nothing was observed of the others.
func (f *throughFlags) reportNotStarted(
	cmd *cobra.Command, keys []client.ObjectKey, unanswering []*traffic.Failure, argv []string,
) error {
	r := throughReport{
		Status: check.Broken, Command: commandRun{Args: argv, ExitCode: 1, Error: notStarted}, Allowed: f.allowed,
	}
	results := suite{Name: throughSuite}
	for i, key := range keys {
		c := clusterTraffic{Namespace: key.Namespace, Name: key.Name}
		result := check.Result{
			ID: check.ID(traffic.KindRequest), Title: key.String(), Status: check.Skipped, Detail: notStarted,
		}
		if failure := unanswering[i]; failure != nil {
			r.Failed++
			c.Record = traffic.Record{Requests: 1, FailedRequests: 1, Down: true, Failures: []traffic.Failure{*failure}}
			result.Status, result.Detail, result.Cause, result.Cure = check.Broken, failure.Error, failure.Cause, failure.Cure
		}
		r.Clusters = append(r.Clusters, c)
		results.add(key.String(), []check.Result{result})
	}
	results.add("command", []check.Result{{
		ID: "command", Title: strings.Join(argv, " "), Status: check.Skipped, Detail: notStarted,
	}})
	return f.finish(cmd, throughView(&r), results, 1)
}

// runCommand runs the command of the user. Its output does not mix with output for machines.
func (f *throughFlags) runCommand(cmd *cobra.Command, argv []string) commandRun {
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	streams := command.Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()}
	if f.Structured() {
		streams.Out = streams.Err
	}
	began := time.Now()
	code, err := command.Child(ctx, argv, os.Environ(), streams)
	ran := commandRun{Args: argv, ExitCode: code, Seconds: time.Since(began).Seconds()}
	if err != nil {
		ran.ExitCode, ran.Error = 1, err.Error()
	}
	return ran
}

func (f *throughFlags) waitSettled(ctx context.Context) {
	select {
	case <-time.After(f.settle):
	case <-ctx.Done():
	}
}

// report prints the report, and returns the error that sets the exit code.
func (f *throughFlags) report(cmd *cobra.Command, r *throughReport) error {
	results := suite{Name: throughSuite}
	down := false
	for i := range r.Clusters {
		c := &r.Clusters[i]
		r.Failed += c.Failed()
		down = down || c.Down
	}
	for i := range r.Clusters {
		c := &r.Clusters[i]
		results.add(c.Namespace+"/"+c.Name, c.results(r.Failed > f.allowed))
	}
	results.add("command", []check.Result{r.Command.result()})
	code := r.Command.ExitCode
	if code == 0 && (r.Failed > f.allowed || down) {
		code = 1
	}
	r.Status = check.OK
	if code != 0 {
		r.Status = check.Broken
	}
	return f.finish(cmd, throughView(r), results, code)
}

func throughView(r *throughReport) output.View {
	return output.View{Data: r, Page: func(p *output.Page) { printThrough(p, r) }}
}

// keyOf is for messages.
func (o *clusterTraffic) keyOf() client.ObjectKey {
	return client.ObjectKey{Namespace: o.Namespace, Name: o.Name}
}

// results returns one result for each kind of failure. Failures that are allowed are warnings, unless the Cluster does
// not answer at the end.
func (o *clusterTraffic) results(tooMany bool) (all []check.Result) {
	for _, kind := range []struct {
		kind   traffic.Kind
		failed int
		detail string
	}{
		{
			traffic.KindRequest, o.FailedRequests,
			fmt.Sprintf("%d of %d requests failed", o.FailedRequests, o.Requests),
		},
		{traffic.KindWatch, o.BrokenWatches, fmt.Sprintf("the watch broke, number of times: %d", o.BrokenWatches)},
		{
			traffic.KindConnection, o.BrokenConnections,
			fmt.Sprintf("the connection broke, number of times: %d", o.BrokenConnections),
		},
	} {
		r := check.Result{ID: check.ID(kind.kind), Title: o.keyOf().String(), Status: check.OK, Detail: kind.detail}
		down := o.Down && kind.kind == traffic.KindRequest
		if down {
			r.Detail += ", also the last one"
		}
		if kind.failed > 0 {
			r.Status = check.Warning
			if tooMany || down {
				r.Status = check.Broken
			}
			for i := range o.Failures {
				if failure := &o.Failures[i]; failure.Kind == kind.kind {
					r.Detail += ", first: " + failure.Error
					r.Cause, r.Cure, r.Seconds = failure.Cause, failure.Cure, failure.Seconds
					break
				}
			}
		}
		all = append(all, r)
	}
	return all
}

// result returns the result of the command itself.
func (c *commandRun) result() check.Result {
	r := check.Result{
		ID: "command", Title: strings.Join(c.Args, " "), Status: check.OK, Seconds: c.Seconds,
		Detail: fmt.Sprintf("exit code %d", c.ExitCode),
	}
	if c.ExitCode != 0 {
		r.Status, r.Cause, r.Cure = check.Broken, "the command itself", "see its output"
		if c.Error != "" {
			r.Detail = c.Error
		}
	}
	return r
}
