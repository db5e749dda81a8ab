// Package check is the command check: its input is flags for pkg/diagnose/check, its output is the reports for people
// and for machines. It makes no decisions.
package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

const (
	// defaultParallel is how many Clusters are checked at the same time. A check mostly waits.
	defaultParallel, maxParallel = 16, 256
	// defaultCheckTime exceeds the total time of the hops of a Cluster when some of them do not answer.
	defaultCheckTime = 45 * time.Second
)

// checkFlags are the flags of check.
type checkFlags struct {
	management.Flags
	management.ServersFlags
	output.Options
	all, everywhere bool
	parallel        int
	timeout, stream time.Duration
	via             string
}

// Command returns the command check.
func Command() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check (CLUSTER | --all)",
		Short: "Find the first broken hop on the path to a workload cluster, its cause and its cure",
		Long: strings.TrimSpace(`
Test the path from a client to the apiserver of a workload cluster, hop by hop. Print the first broken hop,
its likely cause and what to do. A hop that cannot be tested from this machine is marked "?", with the reason.

The command does what Cluster API does: it reads the kubeconfig Secret and sends requests with it. Run it
inside the network of the management cluster to test the most hops. Elsewhere, forward a port of the gateways
and pass it with --via. A Cluster with RemoteNetworks has more hops: from an apiserver to a Node of each
network, and from its machines to the apiserver.

Needs: get on Clusters, Tunnels and Secrets of the namespace, list on RemoteNetworks, and list on Clusters for
--all; in the namespace of the installation, list on Pods and create on pods/portforward. Hops that need a
missing permission are not tested.
Changes: nothing.
Exit codes: 0 no hop is broken, but there may be warnings; 1 a hop is broken, or the command failed; 2 the
command line is invalid.`),
		Example: "  fairlead check -n prod c1\n  fairlead check -n prod c1 -o json | jq -r .first\n  fairlead check --all " +
			"-A --parallel 32\n" +
			"  kubectl -n fairlead-system port-forward service/gateway 6443 & fairlead check -n prod c1 --via 127.0.0.1:6443",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case f.all && len(args) > 0:
				return errors.New("use the name of a Cluster or --all, not both")
			case !f.all && len(args) != 1:
				return errors.New("give the name of one Cluster, or --all")
			case f.everywhere && !f.all:
				return errors.New("--all-namespaces needs --all")
			case f.parallel < 1 || f.parallel > maxParallel:
				return fmt.Errorf("--parallel: %d is not between 1 and %d", f.parallel, maxParallel)
			case f.timeout <= 0 || f.stream <= 0:
				return errors.New("--timeout and --watch-for must be more than 0")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.Flags.AddTo(cmd.Flags())
	f.ServersFlags.AddTo(cmd)
	f.Options.AddTo(cmd)
	flags := cmd.Flags()
	flags.StringVarP(
		&f.Namespace, "namespace", "n", "", "namespace of the Clusters (default: the namespace of the context)",
	)
	flags.BoolVar(&f.all, "all", false, "check all Clusters of the namespace that have or want a tunnel")
	flags.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "with --all: check the Clusters of all namespaces")
	flags.IntVar(&f.parallel, "parallel", defaultParallel, "with --all: number of Clusters to check at the same time")
	flags.DurationVar(
		&f.timeout, "timeout", defaultCheckTime, "time limit for the check of one Cluster, in addition to --watch-for",
	)
	flags.DurationVar(&f.stream, "watch-for", 3*time.Second, "how long a watch must stay open")
	flags.StringVar(
		&f.via, "via", "", "host:port to dial instead of the kubeconfig's address, such as a forwarded port of the gateways",
	)
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// limit is the time limit for one Cluster.
func (f *checkFlags) limit() time.Duration { return f.timeout + f.stream }

func (f *checkFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.Validate(); err != nil {
		return err
	}
	m, err := f.Open()
	if err != nil {
		return err
	}
	checker, done := f.Checker(cmd.Context(), m)
	defer done()
	checker.Via, checker.Watch = f.via, f.stream
	if f.all {
		return f.checkAll(cmd, m, checker)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.limit())
	defer cancel()
	progress := output.NewProgress(cmd)
	progress.Update("checking %s/%s …", m.Namespace, args[0])
	report := checker.Check(ctx, client.ObjectKey{Namespace: m.Namespace, Name: args[0]})
	progress.Done()
	if err := f.Print(cmd, output.View{Data: report, Page: func(p *output.Page) { printReport(p, &report) }}); err != nil {
		return err
	}
	if report.Status == check.Broken {
		return output.Broken()
	}
	return nil
}

// marks are the symbols of results.
var marks = map[check.Status]output.Cell{
	check.OK: {
		Text:  "✓",
		Style: output.StyleGood,
	}, check.Warning: {Text: "!", Style: output.StyleWarning}, check.Broken: {Text: "✗", Style: output.StyleBad},
	check.Unknown: {Text: "?", Style: output.StyleFaint}, check.Skipped: {Text: "-", Style: output.StyleFaint},
}

// PrintResults writes one line for each result: the symbol of its status, its name, its duration and its detail.
func PrintResults(p *output.Page, results []check.Result) {
	const idWidth, timeWidth = 15, 7
	for _, h := range results {
		took := ""
		if h.Status != check.Skipped {
			took = shortTime(h.Seconds)
		}
		text := output.Styled(output.StylePlain, h.Detail)
		if h.Status == check.Skipped || h.Status == check.Unknown {
			text.Style = output.StyleFaint
		}
		p.Line(marks[h.Status], output.Plain(fmt.Sprintf(" %-*s %*s  ", idWidth, h.ID, timeWidth, took)), text)
	}
}

// StyleOf returns the style of a status.
func StyleOf(s check.Status) output.Style { return marks[s].Style }

// printReport writes one line for each hop, and then the conclusion.
func printReport(p *output.Page, r *check.Report) {
	PrintResults(p, r.Hops)
	p.Line()
	verdict := r.Deciding()
	name := r.Namespace + "/" + r.Name
	if verdict == nil {
		p.Line(output.Styled(output.StyleGood, "OK"), output.Plain(": "+name+": nothing is broken"+untested(r)))
		return
	}
	word := output.Styled(output.StyleBad, "BROKEN")
	if r.Status == check.Warning {
		word = output.Styled(output.StyleWarning, "WARNING")
	}
	p.Line(word, output.Plain(fmt.Sprintf(": %s: %s (%s): %s", name, verdict.ID, verdict.Title, verdict.Detail)))
	p.Field("Likely cause", output.Plain(verdict.Cause))
	p.Field("What to do", output.Plain(verdict.Cure))
}

// untested names the hops that were not tested, and how to test them.
func untested(r *check.Report) string {
	var ids []string
	cure := ""
	for _, h := range r.Hops {
		if h.Status == check.Unknown {
			ids = append(ids, string(h.ID))
			if cure == "" {
				cure = h.Cure
			}
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return "; not tested: " + strings.Join(ids, ", ") + ": " + cure
}

func shortTime(seconds float64) string {
	if seconds < 1 {
		return fmt.Sprintf("%d ms", int(seconds*1000))
	}
	return fmt.Sprintf("%.1f s", seconds)
}

// checkAll checks all Clusters, a limited number at the same time.
func (f *checkFlags) checkAll(cmd *cobra.Command, m *management.Client, checker *check.Checker) error {
	namespace := m.Namespace
	if f.everywhere {
		namespace = ""
	}
	keys, err := m.Candidates(cmd.Context(), namespace)
	if err != nil {
		return err
	}
	reports := make([]check.Report, len(keys))
	progress := output.NewProgress(cmd)
	done, counting := 0, sync.Mutex{}
	var group errgroup.Group
	group.SetLimit(f.parallel)
	for i, key := range keys {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.limit())
			defer cancel()
			reports[i] = checker.Check(ctx, key)
			counting.Lock()
			defer counting.Unlock()
			done++
			progress.Update("checked %d of %d …", done, len(keys))
			return nil
		})
	}
	_ = group.Wait()
	progress.Done()
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("reading the state of the fleet: %w", context.Cause(cmd.Context()))
	}
	slices.SortStableFunc(reports, func(a, b check.Report) int { return rank(a.Status) - rank(b.Status) })
	if err := f.Print(cmd, fleetReport(reports)); err != nil {
		return err
	}
	if len(reports) > 0 && reports[0].Status == check.Broken {
		return output.Broken()
	}
	return nil
}

// rank sorts broken Clusters first, then Clusters with warnings.
func rank(s check.Status) int {
	return map[check.Status]int{check.Broken: 0, check.Warning: 1, check.OK: 2}[s]
}

// fleetReport summarises all reports.
func fleetReport(reports []check.Report) output.View {
	t := &output.Table{Columns: output.Columns("NAMESPACE", "CLUSTER", "STATUS", "HOP", "CAUSE", "CURE+")}
	counts := map[check.Status]int{}
	for i := range reports {
		r := &reports[i]
		counts[r.Status]++
		hop, cause, cure := "-", "-", "-"
		if v := r.Deciding(); v != nil {
			hop, cause, cure = string(v.ID), v.Cause, v.Cure
		}
		t.Add(
			r.Namespace+"/"+r.Name, r, output.Plain(r.Namespace), output.Plain(r.Name),
			output.Cell{Text: string(r.Status), Style: StyleOf(r.Status)}, output.Plain(hop), output.Plain(cause),
			output.Plain(cure),
		)
	}
	summary := output.Line{
		output.Plain(
			fmt.Sprintf(
				"%d Clusters: %d broken, %d with warnings, %d ok", len(reports), counts[check.Broken], counts[check.Warning],
				counts[check.OK],
			),
		),
	}
	return output.View{Data: map[string]any{"reports": reports}, Summary: []output.Line{summary}, Table: t}
}
