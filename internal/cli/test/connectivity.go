package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
)

const (
	// defaultParallel is how many Clusters are tested at the same time: their downloads share the gateways.
	defaultParallel, maxParallel = 4, 64
	// defaultConnections is far below the default limit of a tunnel, 512.
	defaultConnections = 50
	// defaultBytes is larger than the buffers of the Envoys on the path together.
	defaultBytes = 8 << 20
	// defaultTestTime bounds the tests of one Cluster, without --idle and --watch-for.
	defaultTestTime = 5 * time.Minute
	// maxIdle is more than the idle timeout of known load balancers, an hour at most.
	maxIdle = 2 * time.Hour
)

// connectivityFlags are the flags of test connectivity.
type connectivityFlags struct {
	clusterFlags
	parallel, connections   int
	bytes                   int64
	idle, timeout, watchFor time.Duration
	sni, connect            string
	exec, portForward       string
	execPod, portPod        traffic.Pod
}

func connectivityCommand(root func() *cobra.Command) *cobra.Command {
	f := connectivityFlags{clusterFlags: clusterFlags{tree: root}}
	cmd := &cobra.Command{
		Use:   "connectivity [CLUSTER...]",
		Short: "Test the tunnels of workload clusters with the requests of real clients",
		Long: strings.TrimSpace(`
Test each Cluster that is named, or each one of the namespace that has or wants a tunnel, with the kubeconfig
that Cluster API uses: every hop of "fairlead check" with a request and a watch, then requests in each mode,
through each address of the gateways and through each gateway, each edge, whether the load balancer preserves
the addresses of edges, many connections at the same time, and a large download. On request, test an idle
connection, a command in a Pod and a port-forward.

A single gateway is selected by a port-forward of the management cluster. A client cannot select an edge,
because the gateways distribute connections: instead, each edge itself sends a request to its apiserver.

Needs: what "fairlead check" needs, and get on Tunnels and Secrets of the namespace; to test each gateway,
list on Pods and create on pods/portforward in the namespace of the installation; to compare the addresses of
edges, list on Nodes and get on the Service gateway-public there. With --exec and --port-forward, the user of
the kubeconfig needs create on pods/exec and pods/portforward in the workload cluster.
Changes: nothing, except that --exec runs echo in the Pod. --bundle and --junit create files.
Exit codes: 0 no test failed; 1 a test failed, a Cluster could not be tested, or the command failed;
2 the command line is invalid.`),
		Example: "  fairlead test connectivity -n prod c1\n" +
			"  fairlead test connectivity -A --junit=report.xml --bundle=support.tar.gz\n" +
			"  fairlead test connectivity -n prod c1 --idle=10m --connections=200 --bytes=104857600",
		Args: func(_ *cobra.Command, args []string) error { return f.check(args) },
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.addTo(cmd)
	set := cmd.Flags()
	set.IntVar(&f.parallel, "parallel", defaultParallel, "number of Clusters to test at the same time")
	set.IntVar(&f.connections, "connections", defaultConnections, "number of connections to open at the same time")
	set.Int64Var(&f.bytes, "bytes", defaultBytes, "number of bytes to download")
	set.DurationVar(&f.idle, "idle", 0, "also test a connection that is idle for this time")
	set.DurationVar(&f.watchFor, "watch-for", 3*time.Second, "how long a watch must stay open")
	set.DurationVar(
		&f.timeout, "timeout", defaultTestTime, "time limit for one Cluster, in addition to --idle and --watch-for",
	)
	set.StringVar(&f.sni, "sni", "", "also test mode sni through the gateways at this host:port")
	set.StringVar(&f.connect, "connect", "", "also test mode connect through the gateways at this host:port")
	set.StringVar(&f.exec, "exec", "", "also run echo in this Pod of the workload cluster: namespace/name")
	set.StringVar(&f.portForward, "port-forward", "", "also connect to this port of a Pod: namespace/name:port")
	return cmd
}

// check validates the command line.
func (f *connectivityFlags) check(names []string) (err error) {
	if f.exec != "" {
		if f.execPod, err = traffic.ParsePod(f.exec, false); err != nil {
			return fmt.Errorf("--exec: %w", err)
		}
	}
	if f.portForward != "" {
		if f.portPod, err = traffic.ParsePod(f.portForward, true); err != nil {
			return fmt.Errorf("--port-forward: %w", err)
		}
	}
	for flag, address := range map[string]string{"via": f.via, "sni": f.sni, "connect": f.connect} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return fmt.Errorf("--%s: %q is not host:port", flag, address)
		}
	}
	switch {
	case f.parallel < 1 || f.parallel > maxParallel:
		return fmt.Errorf("--parallel: %d is not between 1 and %d", f.parallel, maxParallel)
	case f.connections < 1 || f.connections > traffic.MaxConnections:
		return fmt.Errorf("--connections: %d is not between 1 and %d", f.connections, traffic.MaxConnections)
	case f.bytes < 1 || f.bytes > traffic.MaxBytes:
		return fmt.Errorf("--bytes: %d is not between 1 and %d", f.bytes, int64(traffic.MaxBytes))
	case f.idle < 0 || f.idle > maxIdle:
		return fmt.Errorf("--idle: %s is not between 0 and %s", f.idle, maxIdle)
	case f.timeout <= 0 || f.watchFor <= 0:
		return errors.New("--timeout and --watch-for must be more than 0")
	}
	return f.validate(names)
}

// limit is the time limit for one Cluster, whose hops are checked again after a test has failed.
func (f *connectivityFlags) limit() time.Duration { return f.timeout + f.idle + 2*f.watchFor }

// clusterReport is the result for one Cluster.
type clusterReport struct {
	// Report is by fairlead check. Its Status includes Tests, and is Unknown if no request could be sent.
	check.Report
	Tests []check.Result `json:"tests"`
	// Hop is the hop that decides when check looks for the reason of a failed test, which may have only a warning; nil: no
	// test failed, or check found nothing.
	Hop *check.Result `json:"hop,omitempty"`
}

// untested reports whether no request could be sent, such as without permission to read the kubeconfig, or to a Cluster
// without a Tunnel.
func (r *clusterReport) untested() bool {
	return !slices.ContainsFunc(r.Tests, func(t check.Result) bool {
		return t.Status == check.OK || t.Status == check.Warning || t.Status == check.Broken
	})
}

// conclude sets the status of a Cluster that could not be tested: hops without a fault do not mean that requests work.
func (r *clusterReport) conclude() {
	if r.Status != check.Broken && r.untested() {
		r.Status = check.Unknown
	}
}

// results returns what CI systems get. They take skipped tests for a success, so a Cluster that could not be tested has
// a test that fails, with the reason.
func (r *clusterReport) results() []check.Result {
	all := slices.Concat(r.Hops, r.Tests)
	if r.Status != check.Unknown {
		return all
	}
	failed := check.Result{
		ID: traffic.TestRequest, Title: "any request", Status: check.Broken, Detail: "no request could be sent",
	}
	for i := range all {
		if id := all[i].ID; id == check.HopAuthentication || id == traffic.TestRequest {
			failed.Cause, failed.Cure = all[i].Detail, all[i].Cure
		}
	}
	return append(all, failed)
}

func (f *connectivityFlags) run(cmd *cobra.Command, names []string) error {
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
	checker.Via, checker.Watch = f.via, f.watchFor
	t := &tester{flags: f, m: m, checker: checker}
	reports := make([]clusterReport, len(keys))
	progress := output.NewProgress(cmd)
	var group errgroup.Group
	group.SetLimit(f.parallel)
	for i, key := range keys {
		group.Go(func() error {
			progress.Update("testing %s …", key)
			ctx, cancel := context.WithTimeout(cmd.Context(), f.limit())
			defer cancel()
			reports[i] = t.test(ctx, key)
			return nil
		})
	}
	_ = group.Wait()
	progress.Done()
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("testing Clusters: %w", context.Cause(cmd.Context()))
	}
	code := 0
	results := suite{Name: "fairlead test connectivity"}
	for i := range reports {
		r := &reports[i]
		results.add(r.Namespace+"/"+r.Name, r.results())
		if r.Status == check.Broken || r.Status == check.Unknown {
			code = 1
		}
	}
	return f.finish(cmd, connectivityView(reports), results, code)
}

func connectivityView(reports []clusterReport) output.View {
	return output.View{
		Data: map[string]any{"clusters": reports}, Page: func(p *output.Page) { printClusters(p, reports) },
	}
}

// tester tests Clusters.
type tester struct {
	flags   *connectivityFlags
	m       *management.Client
	checker *check.Checker
}

// test checks the hops of a Cluster and tests its ways. If a test fails although all hops were healthy, it checks the
// hops again.
func (t *tester) test(ctx context.Context, key client.ObjectKey) clusterReport {
	r := clusterReport{Report: t.checker.Check(ctx, key), Tests: []check.Result{}}
	if v := r.Deciding(); v != nil && v.Status == check.Broken {
		r.Hop = v
	}
	for _, h := range r.Hops {
		if h.ID == check.HopAuthentication && h.Status == check.OK {
			r.Tests = t.ways(ctx, key)
		}
	}
	for i := range r.Tests {
		test := &r.Tests[i]
		if test.Status == check.Broken && r.Hop == nil {
			again := t.checker.Check(ctx, key)
			r.Hop = again.Deciding()
			r.Status, r.First = check.Broken, test.ID
			break
		}
		if test.Status == check.Warning && r.Status == check.OK {
			r.Status, r.First = check.Warning, test.ID
		}
	}
	r.conclude()
	return r
}

// ways tests all ways to an apiserver that answers.
func (t *tester) ways(ctx context.Context, key client.ObjectKey) (all []check.Result) {
	w, err := readWays(ctx, t.m, key, t.flags.via)
	var own *traffic.Target
	if err == nil {
		own, err = w.own()
	}
	if err != nil {
		return []check.Result{{
			ID: traffic.TestRequest, Title: "kubeconfig", Status: check.Unknown, Detail: err.Error(),
			Cure: "correct what the message names, and run the command again",
		}}
	}
	all = append(all, t.modes(ctx, w)...)
	all = append(all, t.addresses(ctx, w)...)
	all = append(all, t.gateways(ctx, w)...)
	all = append(all, t.edges(ctx, w)...)
	all = append(all, t.sources(ctx, w.tunnel.HeldID())...)
	all = append(all, own.TestConnections(ctx, t.flags.connections), own.TestDownload(ctx, t.flags.bytes, t.flags.timeout))
	all = append(all, t.pods(ctx, w)...)
	if t.flags.idle > 0 {
		all = append(all, own.TestIdle(ctx, t.flags.idle))
	}
	return all
}

// pods tests what flags request: a command in a Pod, and a port-forward.
func (t *tester) pods(ctx context.Context, w *ways) (all []check.Result) {
	if t.flags.exec == "" && t.flags.portForward == "" {
		return nil
	}
	target, err := w.streams()
	if err != nil {
		return []check.Result{result(ctx, nil, err, traffic.TestExec, "streams to Pods")}
	}
	if t.flags.exec != "" {
		all = append(all, target.TestExec(ctx, t.flags.execPod))
	}
	if t.flags.portForward != "" {
		all = append(all, target.TestPortForward(ctx, t.flags.portPod))
	}
	return all
}

// printClusters writes the results of all Clusters, and a line that sums them up.
func printClusters(p *output.Page, reports []clusterReport) {
	failed, untested := 0, 0
	for i := range reports {
		if i > 0 {
			p.Line()
		}
		r := &reports[i]
		p.Line(output.Styled(output.StyleBold, r.Namespace+"/"+r.Name))
		printTests(p, r)
		switch r.Status {
		case check.Broken:
			failed++
		case check.Unknown:
			untested++
		}
	}
	p.Line()
	word, text := output.Styled(output.StyleGood, "OK"), fmt.Sprintf(": %d of %d Clusters failed", failed, len(reports))
	switch {
	case failed > 0:
		word = output.Styled(output.StyleBad, "BROKEN")
	case untested > 0:
		word = output.Styled(output.StyleWarning, "UNKNOWN")
	}
	if untested > 0 {
		text += fmt.Sprintf(", %d were not tested: see their hops", untested)
	}
	p.Line(word, output.Plain(text))
}
