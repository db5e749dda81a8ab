package cli

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/check"
)

const (
	// defaultParallel is how many Clusters are looked at at the same time: each look mostly waits.
	defaultParallel, maxParallel = 16, 256
	// defaultCheckTime is longer than all hops of one Cluster may take together where some of them have no answer.
	defaultCheckTime = 45 * time.Second
)

// checkFlags are the command line of check.
type checkFlags struct {
	managementFlags
	serversFlags
	output
	all, everywhere, json bool
	parallel              int
	timeout, stream       time.Duration
	via                   string
}

func checkCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check (CLUSTER | --all)",
		Short: "Find the first broken hop on the way to a workload cluster, its cause and its cure",
		Long: strings.TrimSpace(`
Walk the way from a client to the apiserver of a workload cluster, hop by hop, and name the first that is broken, the likely cause, and
what to do. It changes nothing. What can't be tested from this machine is said to be so, and from where it can.

It does what Cluster API does: it reads the kubeconfig Secret and makes requests with it. So it says most inside of the management
cluster's network; elsewhere forward a port of the gateways, and give it with --via.

Exit codes: 0 nothing is broken (warnings leave it 0); 1 a hop is broken; 2 the command line is wrong.`),
		Example: "  fairlead check -n prod c1\n  fairlead check -n prod c1 -o json | jq -r .first\n  fairlead check --all -A --parallel 32\n" +
			"  kubectl -n fairlead-system port-forward service/gateway 6443 & fairlead check -n prod c1 --via 127.0.0.1:6443",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case f.all && len(args) > 0:
				return errors.New("give the name of a Cluster or --all, not both")
			case !f.all && len(args) != 1:
				return errors.New("give the name of one Cluster, or --all")
			case f.everywhere && !f.all:
				return errors.New("--all-namespaces is for --all")
			case f.parallel < 1 || f.parallel > maxParallel:
				return fmt.Errorf("--parallel: %d is not between 1 and %d", f.parallel, maxParallel)
			case f.timeout <= 0:
				return errors.New("--timeout must be more than 0")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.managementFlags.addTo(cmd.Flags())
	f.serversFlags.addTo(cmd)
	f.output.addTo(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.json, "json", false, "the same as -o json")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the Clusters; by default that of the context")
	flags.BoolVar(&f.all, "all", false, "check all Clusters of the namespace that have a tunnel or want one")
	flags.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "with --all: those of all namespaces")
	flags.IntVar(&f.parallel, "parallel", defaultParallel, "with --all: how many at the same time")
	flags.DurationVar(&f.timeout, "timeout", defaultCheckTime, "after which the look at one Cluster ends")
	flags.DurationVar(&f.stream, "watch-for", 3*time.Second, "for how long a watch has to stay open")
	flags.StringVar(&f.via, "via", "", "host:port to dial instead of what the kubeconfig names, such as a forwarded port of the gateways")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

func (f *checkFlags) run(cmd *cobra.Command, args []string) error {
	if f.json {
		f.form = formJSON
	}
	if err := f.validate(); err != nil {
		return err
	}
	m, err := f.open()
	if err != nil {
		return err
	}
	checker := &check.Checker{
		Objects: m, Secrets: m, Asks: m, Installation: f.installation, Via: f.via, Watch: f.stream,
	}
	servers, err := f.connect(cmd.Context(), m)
	switch {
	case err == nil:
		defer func() { _ = servers.Close() }()
		checker.Servers = check.Inspected{Servers: servers}
	case !apierrors.IsForbidden(err): // who may not look does not know that there are none
		checker.Servers = noServers{err}
	}
	if f.all {
		return f.checkAll(cmd, m, checker)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	progress := newProgress(cmd)
	progress.say("looking at %s/%s …", m.namespace, args[0])
	report := checker.Check(ctx, client.ObjectKey{Namespace: m.namespace, Name: args[0]})
	progress.done()
	if err := f.print(cmd, view{Data: report, Page: func(p *page) { printReport(p, &report) }}); err != nil {
		return err
	}
	if report.Status == check.Broken {
		return broken()
	}
	return nil
}

// noServers are xds-servers of which none was found.
type noServers struct{ err error }

// Sight implements check.Servers.
func (n noServers) Sight(context.Context, string, []string) (check.Sight, error) {
	return check.Sight{}, n.err
}

// Look implements check.Servers.
func (n noServers) Look(context.Context, string) ([]check.EdgeLook, error) { return nil, n.err }

// marks are the signs of what hops come to.
var marks = map[check.Status]cell{
	check.OK: {"✓", moodGood}, check.Warning: {"!", moodWarning}, check.Broken: {"✗", moodBad}, check.Unknown: {"?", moodFaint}, check.Skipped: {"-", moodFaint},
}

// printReport writes one line for each hop, and then the verdict.
func printReport(p *page, r *check.Report) {
	const idWidth, timeWidth = 15, 7
	for _, h := range r.Hops {
		took := ""
		if h.Status != check.Skipped {
			took = shortTime(h.Seconds)
		}
		text := in(moodPlain, h.Detail)
		if h.Status == check.Skipped || h.Status == check.Unknown {
			text.mood = moodFaint
		}
		p.line(marks[h.Status], plain(fmt.Sprintf(" %-*s %*s  ", idWidth, h.ID, timeWidth, took)), text)
	}
	p.line()
	verdict := r.Verdict()
	name := r.Namespace + "/" + r.Name
	if verdict == nil {
		p.line(in(moodGood, "OK"), plain(": "+name+": nothing is broken"+untested(r)))
		return
	}
	word := in(moodBad, "BROKEN")
	if r.Status == check.Warning {
		word = in(moodWarning, "WARNING")
	}
	p.line(word, plain(fmt.Sprintf(": %s: %s (%s): %s", name, verdict.ID, verdict.Title, verdict.Detail)))
	p.field("Likely cause", plain(verdict.Cause))
	p.field("What to do", plain(verdict.Cure))
}

// untested names the hops of which nothing is known, and how that can be changed.
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

// checkAll checks a fleet, so many at a time.
func (f *checkFlags) checkAll(cmd *cobra.Command, m *management, checker *check.Checker) error {
	keys, err := f.candidates(cmd.Context(), m)
	if err != nil {
		return err
	}
	reports := make([]check.Report, len(keys))
	progress := newProgress(cmd)
	done, counting := 0, sync.Mutex{}
	var group errgroup.Group
	group.SetLimit(f.parallel)
	for i, key := range keys {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			reports[i] = checker.Check(ctx, key)
			counting.Lock()
			defer counting.Unlock()
			done++
			progress.say("%d of %d looked at …", done, len(keys))
			return nil
		})
	}
	_ = group.Wait()
	progress.done()
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("looking at the fleet: %w", context.Cause(cmd.Context()))
	}
	slices.SortStableFunc(reports, func(a, b check.Report) int { return rank(a.Status) - rank(b.Status) })
	if err := f.print(cmd, fleetReport(reports)); err != nil {
		return err
	}
	if len(reports) > 0 && reports[0].Status == check.Broken {
		return broken()
	}
	return nil
}

// rank puts what is broken first, then what has a warning.
func rank(s check.Status) int {
	return map[check.Status]int{check.Broken: 0, check.Warning: 1, check.OK: 2}[s]
}

// candidates are the Clusters that have a tunnel or want one, in order.
func (f *checkFlags) candidates(ctx context.Context, m *management) ([]client.ObjectKey, error) {
	options := []client.ListOption{client.InNamespace(m.namespace)}
	if f.everywhere {
		options = nil
	}
	var clusters clusterv1.ClusterList
	if err := m.List(ctx, &clusters, options...); err != nil {
		return nil, fmt.Errorf("listing Clusters: %w", err)
	}
	var tunnels v1alpha1.TunnelList
	if err := m.List(ctx, &tunnels, options...); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	var keys []client.ObjectKey
	for i := range clusters.Items {
		if clusters.Items[i].Labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelEnabled {
			keys = append(keys, client.ObjectKeyFromObject(&clusters.Items[i]))
		}
	}
	for i := range tunnels.Items {
		keys = append(keys, client.ObjectKeyFromObject(&tunnels.Items[i]))
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys), nil
}

// fleetReport is the summary of a fleet.
func fleetReport(reports []check.Report) view {
	t := &table{columns: columns("NAMESPACE", "CLUSTER", "STATUS", "HOP", "CAUSE", "CURE+")}
	counts := map[check.Status]int{}
	for i := range reports {
		r := &reports[i]
		counts[r.Status]++
		hop, cause, cure := "-", "-", "-"
		if v := r.Verdict(); v != nil {
			hop, cause, cure = string(v.ID), v.Cause, v.Cure
		}
		t.add(r.Namespace+"/"+r.Name, r, plain(r.Namespace), plain(r.Name), cell{string(r.Status), marks[r.Status].mood}, plain(hop), plain(cause), plain(cure))
	}
	summary := line{plain(fmt.Sprintf("%d Clusters: %d broken, %d with warnings, %d ok", len(reports), counts[check.Broken], counts[check.Warning], counts[check.OK]))}
	return view{Data: map[string]any{"reports": reports}, Summary: []line{summary}, Table: t}
}
