// Package status is the command status: the fleet as a table, and one Cluster as a page. pkg/diagnose/summary decides
// what is wrong with a Cluster.
package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/observed"
)

const (
	// liveTime bounds the wait for xds-servers. Without their answers status shows the state of the objects.
	liveTime = 3 * time.Second
	// liveInterval is the time between two queries of --watch.
	liveInterval = 10 * time.Second
)

// statusFlags are the flags of status.
type statusFlags struct {
	management.Flags
	management.ServersFlags
	output.Options
	all     bool
	offline bool
	wait    string // a condition; empty: the command does not wait
	timeout time.Duration
}

// Command returns the command status.
func Command() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status [CLUSTER...]",
		Short: "Show the status of all tunnels, or of one Cluster in full",
		Long: strings.TrimSpace(`
Show the Clusters that have or want a tunnel or have RemoteNetworks, unhealthy Clusters first. Below each
Cluster, show its networks, and its apiservers, which reach them (mode egress). With CLUSTER, show the
warnings, networks, edges, certificates and conditions of that Cluster.

With --wait, first wait until every Cluster is ready, or until every named one is, and then show the status.
At the timeout, print what is missing. --wait=CONDITION waits for another condition of the Tunnels.

All values except round-trip times come from objects of the management cluster. Round-trip times come from the
xds-servers and are left out if no xds-server answers within 3 seconds, or with --live=false.

Needs: list on Clusters and Tunnels, and watch for --watch and --wait; the same on RemoteNetworks to show
networks; get on Secrets to show when the certificate of a kubeconfig expires; for round-trip times, list on
Pods and create on pods/portforward in the namespace of the installation.
Changes: nothing.
Exit codes: 0 no Cluster is broken, or with --wait the condition is met; 1 a Cluster is broken, the condition
is not met, or the command failed; 2 the command line is invalid.`),
		Example: "  fairlead status -A\n  fairlead status -n prod c1\n  fairlead status -A --watch\n" +
			"  fairlead status -n prod --wait --timeout=10m\n  fairlead status -A " +
			"-o json | jq '.rows[] | select(.health != \"ok\") | .cluster'",
		Args: func(_ *cobra.Command, args []string) error { return f.validateWait(args) },
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.Flags.AddTo(cmd.Flags())
	f.ServersFlags.AddTo(cmd)
	f.AddWatchTo(cmd)
	var live bool
	cmd.Flags().BoolVar(&live, "live", true, "query the xds-servers for round-trip times")
	cmd.PreRun = func(*cobra.Command, []string) { f.offline = !live }
	cmd.Flags().
		StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the Clusters (default: the namespace of the context)")
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "show the Clusters of all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	cmd.Flags().StringVar(&f.wait, "wait", "", "wait until this condition of each Cluster's Tunnel is True")
	cmd.Flags().Lookup("wait").NoOptDefVal = v1alpha1.ConditionReady
	cmd.Flags().DurationVar(&f.timeout, "timeout", defaultWait, "with --wait: how long to wait")
	_ = cmd.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions(waitable, cobra.ShellCompDirectiveNoFileComp))
	cmd.MarkFlagsMutuallyExclusive("wait", "watch")
	return cmd
}

// reader reads the fleet or one Cluster of it.
type reader struct {
	flags     *statusFlags
	from      client.Reader
	m         *management.Client
	namespace string // empty: all
	name      string // empty: all
	live      *liveReader
	health    summary.Health // the worst health of the last view
	hidden    string         // why networks are not shown; empty: they are
}

func (f *statusFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.Validate(); err != nil {
		return err
	}
	if f.all && len(args) > 0 {
		return output.UsageError("a Cluster is in one namespace: give --namespace instead of --all-namespaces")
	}
	m, err := f.Open()
	if err != nil {
		return err
	}
	l := &reader{
		flags:     f,
		m:         m,
		namespace: m.Namespace,
		live:      &liveReader{flags: f, m: m, progress: output.NewProgress(cmd)},
	}
	if f.all {
		l.namespace = ""
	}
	if len(args) == 1 {
		l.name = args[0]
	}
	defer l.live.close()
	kinds := []client.Object{&clusterv1.Cluster{}, &v1alpha1.Tunnel{}}
	if l.hidden = hiddenNetworks(cmd.Context(), m, l.namespace); l.hidden == "" {
		kinds = append(kinds, &v1alpha1.RemoteNetwork{})
	}
	from, changes, err := m.Reader(cmd.Context(), f.Watch || f.wait != "", l.namespace, kinds...)
	if err != nil {
		return management.ExplainMissing(err)
	}
	l.from = from
	if f.wait != "" {
		return l.waitFor(cmd, args, changes)
	}
	if f.Watch && !f.offline {
		changes = output.Both(changes, output.Every(liveInterval))
	}
	if err := f.Show(cmd, l.read, changes); err != nil {
		return err
	}
	if l.health == summary.Broken && !f.Watch {
		return output.Broken()
	}
	return nil
}

func (l *reader) read(ctx context.Context) (output.View, error) {
	in, err := l.input(ctx)
	if err != nil {
		return output.View{}, err
	}
	now := time.Now()
	fleet := summary.Build(in, now)
	fleet.PublicAddress = l.publicAddress(ctx)
	l.health = summary.OK
	if len(fleet.Rows) > 0 {
		l.health = fleet.Rows[0].Health
	}
	if l.name == "" {
		return fleetTable(fleet, l.problems(), now), nil
	}
	if len(fleet.Rows) == 0 {
		return output.View{}, fmt.Errorf(
			"the Cluster %s/%s has neither a tunnel nor networks, and asks for none: label it with %s=%s, as `fairlead join "+
				"--enable` does",
			l.namespace,
			l.name,
			v1alpha1.TunnelLabel,
			v1alpha1.TunnelEnabled,
		)
	}
	return clusterPage(&fleet.Rows[0], l.live.problem, l.hidden, now), nil
}

// input reads the objects, and queries the xds-servers at the same time.
func (l *reader) input(ctx context.Context) (in summary.Input, err error) {
	if l.name != "" {
		return l.inputOfOne(ctx)
	}
	answer := make(chan *summary.Live, 1)
	go func() { answer <- l.live.ask(ctx) }()
	in, err = l.objects(ctx)
	in.Live = <-answer
	return in, err
}

// objects reads the objects of all Clusters.
func (l *reader) objects(ctx context.Context) (in summary.Input, err error) {
	var clusters clusterv1.ClusterList
	var tunnels v1alpha1.TunnelList
	if err := errors.Join(l.from.List(ctx, &clusters, client.InNamespace(l.namespace)), l.from.List(ctx, &tunnels,
		client.InNamespace(l.namespace))); err != nil {
		return in, management.ExplainMissing(fmt.Errorf("listing Clusters and Tunnels: %w", err))
	}
	in.Networks, err = l.networks(ctx)
	in.Clusters, in.Tunnels = clusters.Items, tunnels.Items
	return in, err
}

// hiddenNetworks returns why the user cannot list RemoteNetworks; empty: the user can.
func hiddenNetworks(ctx context.Context, from client.Reader, namespace string) string {
	var one v1alpha1.RemoteNetworkList
	err := from.List(ctx, &one, client.InNamespace(namespace), client.Limit(1))
	switch {
	case apierrors.IsForbidden(err):
		return "you may not list RemoteNetworks; `fairlead network list NETWORK` shows one that you may read"
	case apimeta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return "the management cluster has no RemoteNetworks: its CRDs are of an earlier version"
	}
	return "" // other errors are returned by the list that follows
}

func (l *reader) networks(ctx context.Context) ([]v1alpha1.RemoteNetwork, error) {
	if l.hidden != "" {
		return nil, nil
	}
	var list v1alpha1.RemoteNetworkList
	if err := l.from.List(ctx, &list, client.InNamespace(l.namespace)); err != nil {
		return nil, fmt.Errorf("listing RemoteNetworks: %w", err)
	}
	return list.Items, nil
}

// problems describes what is not shown, and why.
func (l *reader) problems() (all []string) {
	if l.live.problem != "" {
		all = append(all, "no round-trip times: "+l.live.problem)
	}
	if l.hidden != "" {
		all = append(all, "no networks: "+l.hidden)
	}
	return all
}

// inputOfOne reads one Cluster, its Tunnel and its kubeconfig.
func (l *reader) inputOfOne(ctx context.Context) (in summary.Input, err error) {
	key := types.NamespacedName{Namespace: l.namespace, Name: l.name}
	var cluster clusterv1.Cluster
	var tunnel v1alpha1.Tunnel
	errCluster, errTunnel := l.from.Get(ctx, key, &cluster), l.from.Get(ctx, key, &tunnel)
	networks, errNetworks := l.networks(ctx)
	networks = slices.DeleteFunc(networks, func(n v1alpha1.RemoteNetwork) bool { return n.Spec.ClusterName != l.name })
	if apierrors.IsNotFound(errCluster) && errTunnel == nil && !tunnel.OfCluster() {
		return in, notOfCluster(&tunnel)
	}
	if apierrors.IsNotFound(errCluster) && apierrors.IsNotFound(errTunnel) && len(networks) == 0 {
		return in, fmt.Errorf( //nolint:staticcheck // Cluster is a kind
			"Cluster %s not found in namespace %s: `kubectl get clusters -A` lists all",
			key.Name,
			key.Namespace,
		)
	}
	err = errors.Join(client.IgnoreNotFound(errCluster), client.IgnoreNotFound(errTunnel), errNetworks)
	if err != nil {
		return in, management.ExplainMissing(fmt.Errorf("reading Cluster and Tunnel: %w", err))
	}
	if errCluster == nil {
		in.Clusters = []clusterv1.Cluster{cluster}
	}
	if errTunnel == nil {
		in.Tunnels = []v1alpha1.Tunnel{tunnel}
	}
	if err := l.addNetworks(ctx, &in, networks); err != nil {
		return in, err
	}
	in.Live = l.liveOf(ctx, in.Tunnels)
	var secret corev1.Secret
	// without permission its expiry is not shown
	if l.m.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name + kubeconfig.Suffix}, &secret) == nil {
		if end, ok := clientCertificateEnd(secret.Data[kubeconfig.Key]); ok {
			in.Kubeconfigs = map[types.NamespacedName]time.Time{key: end}
		}
	}
	return in, nil
}

// notOfCluster returns the error for a name that is that of a Tunnel for another use.
func notOfCluster(t *v1alpha1.Tunnel) error {
	if t.Spec.EgressOf != "" {
		return fmt.Errorf("%s is the Tunnel of the apiservers of the Cluster %s: see `fairlead status -n %s %s`", t.Name,
			t.Spec.EgressOf, t.Namespace, t.Spec.EgressOf)
	}
	return fmt.Errorf("%s is the Tunnel of the RemoteNetwork %s: see `fairlead network list -n %s %s`, and "+
		"`fairlead status` of its Cluster", t.Name, t.Spec.Network, t.Namespace, t.Spec.Network)
}

// addNetworks adds the networks of the Cluster, with their Tunnels and that of its apiservers.
func (l *reader) addNetworks(ctx context.Context, in *summary.Input, networks []v1alpha1.RemoteNetwork) error {
	if in.Networks = networks; len(networks) == 0 {
		return nil
	}
	names := []string{l.name + v1alpha1.EgressTunnelSuffix}
	for i := range networks {
		names = append(names, networks[i].Name+v1alpha1.NetworkTunnelSuffix)
	}
	for _, name := range names {
		var tunnel v1alpha1.Tunnel
		err := l.from.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: name}, &tunnel)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading Tunnel %s: %w", name, err)
		}
		if err == nil {
			in.Tunnels = append(in.Tunnels, tunnel)
		}
	}
	return nil
}

// liveOf queries the xds-servers for the live data of Tunnels.
func (l *reader) liveOf(ctx context.Context, tunnels []v1alpha1.Tunnel) *summary.Live {
	var ids []string
	for i := range tunnels {
		if id := tunnels[i].HeldID(); id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil // without ids the servers would be queried for all
	}
	return l.live.ask(ctx, ids...)
}

// healthStyles are the styles of health.
var healthStyles = map[summary.Health]output.Style{
	summary.OK:      output.StyleGood,
	summary.Warning: output.StyleWarning,
	summary.Broken:  output.StyleBad,
	summary.Unknown: output.StyleFaint,
	summary.Waiting: output.StyleFaint,
}

func fleetTable(fleet summary.View, problems []string, now time.Time) output.View {
	t := &output.Table{
		Columns: output.Columns(
			"NAMESPACE", "CLUSTER", "STATE", "MODE", "HOSTNAME", "EDGES", "TUNNELS", "RTT~", "CHANGED~", "EXPIRES~", "AGE+~",
			"SERVER+", "WARNING",
		),
	}
	for i := range fleet.Rows {
		r := &fleet.Rows[i]
		addRow(t, r, r.Cluster, r.Hostname, now)
		for _, below := range r.Below() {
			name, where := "  apiservers", ""
			if below.Mode == summary.ModeNetwork {
				name, where = "  "+below.Network, strings.Join(below.CIDRs, ",")
			}
			addRow(t, below, name, where, now)
		}
	}
	return output.View{
		Data:    fleet,
		Summary: append(publicAddressLines(fleet.PublicAddress), summaryLines(fleet.Summary, problems)...),
		Table:   t,
		Empty:   "no Cluster in this namespace has a tunnel or has opted in: -A shows all namespaces",
	}
}

// addRow adds a row for a Cluster, or for what belongs to it. where is its hostname, or the CIDRs of a network.
func addRow(t *output.Table, r *summary.Row, name, where string, now time.Time) {
	warning := "-"
	if len(r.Warnings) > 0 {
		warning = r.Warnings[0].Text
		if more := len(r.Warnings) - 1; more > 0 {
			warning += fmt.Sprintf(" (and %d more)", more)
		}
	}
	expires := "-"
	if len(r.Expiries) > 0 {
		expires = output.Left(r.Expiries[0].NotAfter, now)
	}
	key := r.Namespace + "/" + r.Cluster
	if name != r.Cluster {
		key += "/" + strings.TrimSpace(name)
	}
	t.Add(
		key,
		r,
		output.Plain(r.Namespace),
		output.Plain(name),
		output.Styled(healthStyles[r.Health], string(r.Health)),
		output.Plain(output.OrDash(r.Mode)),
		output.Plain(output.OrDash(where)),
		output.Plain(fmt.Sprintf("%d/%d", r.Connected, r.LetIn)),
		output.Plain(output.OrDash(observed.TunnelsByGateway(r.Gateways))),
		output.Plain(roundTrip(r.RTT)),
		output.Plain(output.Age(r.LastChange, now)),
		output.Plain(expires),
		output.Plain(output.Age(r.Created, now)),
		output.Plain(output.OrDash(r.Server)),
		output.Plain(warning),
	)
}

// publicAddress returns why edges cannot resolve the public address, or nil. Without permission to read the Service it
// is not known, and is left out.
func (l *reader) publicAddress(ctx context.Context) *summary.Problem {
	var service corev1.Service
	key := types.NamespacedName{Namespace: l.flags.Installation, Name: v1alpha1.PublicServiceName}
	if l.m.Get(ctx, key, &service) != nil {
		return nil
	}
	c := apimeta.FindStatusCondition(service.Status.Conditions, v1alpha1.ServiceConditionPublicAddress)
	if c == nil || c.Status != metav1.ConditionFalse {
		return nil
	}
	return &summary.Problem{Reason: c.Reason, Message: c.Message}
}

func publicAddressLines(p *summary.Problem) []output.Line {
	if p == nil {
		return nil
	}
	return []output.Line{{output.Styled(output.StyleWarning, p.Reason), output.Plain(": " + p.Message)}}
}

func summaryLines(s summary.Summary, problems []string) []output.Line {
	word := "Clusters"
	if s.Clusters == 1 {
		word = "Cluster"
	}
	first := output.Line{output.Plain(fmt.Sprintf("%d %s:", s.Clusters, word))}
	for _, part := range []struct {
		n    int
		what summary.Health
	}{{s.Broken, summary.Broken}, {s.Unknown, summary.Unknown}, {s.Warning, summary.Warning}, {
		s.Waiting,
		summary.Waiting,
	}, {s.OK, summary.OK}} {
		if part.n > 0 || part.what == summary.OK {
			first = append(
				first, output.Plain(" "), output.Styled(healthStyles[part.what], fmt.Sprintf("%d %s", part.n, part.what)),
			)
		}
	}
	first = append(
		first, output.Plain(fmt.Sprintf("; %d of %d edges connected, %d tunnels", s.EdgesConnected, s.Edges, s.Tunnels)),
	)
	if s.Networks > 0 {
		first = append(first, output.Plain(fmt.Sprintf("; %d of %d networks ok", s.NetworksOK, s.Networks)))
	}
	if s.NotOptedIn > 0 {
		first = append(first, output.Plain(fmt.Sprintf("; %d more Clusters have not opted in", s.NotOptedIn)))
	}
	lines := []output.Line{first}
	for _, problem := range problems {
		lines = append(lines, output.Line{output.Styled(output.StyleFaint, problem)})
	}
	return lines
}

func roundTrip(m observed.Millis) string {
	switch {
	case m == 0:
		return "-"
	case m < 10:
		return fmt.Sprintf("%.1fms", float64(m))
	}
	return fmt.Sprintf("%.0fms", float64(m))
}

// sortedConditions returns the conditions in the program's order, the summary first.
func sortedConditions(r *summary.Row) []string {
	var all []string
	for _, c := range r.Conditions {
		all = append(all, c.Type)
	}
	slices.SortStableFunc(all, func(a, b string) int {
		if (a == v1alpha1.ConditionReady) != (b == v1alpha1.ConditionReady) {
			if a == v1alpha1.ConditionReady {
				return -1
			}
			return 1
		}
		return 0
	})
	return all
}
