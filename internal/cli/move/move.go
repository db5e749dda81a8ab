// Package move is the command group move: it prepares moving a Cluster with clusterctl, so that its edges are enrolled
// at the target in advance.
package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/join"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
)

// installTimeout is how long the controller of the target may take to make a token and a Secret.
const installTimeout = time.Minute

// moveFlags are the flags of move prepare.
type moveFlags struct {
	management.Flags
	to       management.Flags
	workload string
	edges    []string // namespaces of the workload cluster
	lasts    time.Duration
	timeout  time.Duration
	wait     bool
}

// Command returns the command group move.
func Command() *cobra.Command {
	return command.Group("move", "Keep the edges of a Cluster when clusterctl moves it", movePrepareCommand())
}

const movePrepareHelp = `
Enrol the edges of a Cluster in another management cluster, before "clusterctl move" moves the Cluster there.
The edges then have a certificate of each installation, and their tunnels to the new gateways come up seconds
after the Cluster arrives. The installations may have different tunnel domains, gateways and CAs. Run
"clusterctl move" after this command has succeeded. You can repeat the command at any time.

The command does four things for the Tunnel of the Cluster, for that of each of its RemoteNetworks, and for
that of its apiservers. It leaves out a Tunnel without a connected edge.
  1. It creates a Tunnel with the same name and id in the target.
  2. It waits for the bootstrap Secret that the target creates for the Tunnel.
  3. It runs "edge-agent join" with the bootstrap file in each Pod of an edge, through the existing tunnel. For
     edges outside of Pods, and Pods that it cannot reach, it prints what to run there. The printed text
     contains a token.
  4. It waits until the target has as many edges on record as are connected here.

The target keeps the Tunnels for the time --for. If the Cluster has not arrived by then, it withdraws the
edges.

Needs: list and get on Tunnels, and get on Secrets here; in the target, create and patch on Tunnels, set-id on
Tunnels in all namespaces, create on Namespaces and get on Secrets.
Changes: in the target, the Namespace and the Tunnels; in the workload cluster, the state of the edges.
Exit codes: 0 all edges are enrolled in the target; 1 an edge is not, or the command failed; 2 the command
line is invalid.`

func movePrepareCommand() *cobra.Command {
	var f moveFlags
	cmd := &cobra.Command{
		Use:   "prepare CLUSTER",
		Short: "Enrol the edges of a Cluster in the management cluster that it will move to",
		Long:  strings.TrimSpace(movePrepareHelp),
		Example: "  fairlead move prepare -n prod c1 --to-kubeconfig=target.kubeconfig && clusterctl move -n prod " +
			"--to-kubeconfig=target.kubeconfig\n" +
			"  fairlead move prepare -n prod c1 --to-kubeconfig=target.kubeconfig --wait=false",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.open(cmd.OutOrStdout(), args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			return m.run(ctx)
		},
	}
	f.AddTo(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVarP(
		&f.Namespace, "namespace", "n", "", "namespace of the Cluster (default: the namespace of the context)",
	)
	flags.StringVar(
		&f.to.Kubeconfig, "to-kubeconfig", "", "kubeconfig of the target management cluster (required)",
	)
	flags.StringVar(&f.to.Context, "to-kubeconfig-context", "", "context of the target kubeconfig")
	flags.StringVar(&f.to.Namespace, "to-namespace", "", "namespace of the Cluster in the target (default: the same)")
	flags.StringVar(
		&f.workload, "workload-kubeconfig", "",
		"kubeconfig with which the Pods of edges are reached (default: the kubeconfig of the Cluster, through its tunnel)",
	)
	// Not all namespaces: a user who may create a Pod in any namespace could obtain the token.
	flags.StringArrayVar(
		&f.edges, "edge-namespace", []string{"fairlead-edge", "fairlead-network", metav1.NamespaceSystem},
		"namespace of the workload cluster with Pods of edges; repeat it for several",
	)
	flags.DurationVar(&f.lasts, "for", 24*time.Hour, "how long the target waits for the Cluster")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "time limit for the whole command")
	flags.BoolVar(&f.wait, "wait", true, "wait until the edges are enrolled in the target")
	_ = cmd.MarkFlagRequired("to-kubeconfig")
	return cmd
}

// move is the move of one Cluster, or of one of its Tunnels.
type move struct {
	flags    moveFlags
	out      io.Writer
	from, to client.Client
	cluster  client.ObjectKey     // at the source
	key      client.ObjectKey     // of the Tunnel at the source
	target   client.ObjectKey     // of the Tunnel at the target
	seen     map[string]time.Time // see carriers; shared by all Tunnels of the Cluster
}

func (f moveFlags) open(out io.Writer, cluster string) (*move, error) {
	if f.lasts < time.Minute {
		return nil, output.UsageError("--for: %s is less than the minute that a move takes", f.lasts)
	}
	from, namespace, err := f.Client()
	if err != nil {
		return nil, err
	}
	if f.to.Namespace == "" {
		f.to.Namespace = namespace
	}
	to, _, err := f.to.Client()
	if err != nil {
		return nil, fmt.Errorf("--to-kubeconfig: %w", err)
	}
	key := client.ObjectKey{Namespace: namespace, Name: cluster}
	return &move{
		flags: f, out: out, from: from, to: to, cluster: key, key: key, seen: map[string]time.Time{},
		target: client.ObjectKey{Namespace: f.to.Namespace, Name: cluster},
	}, nil
}

// of returns the move of one of the Cluster's Tunnels.
func (m *move) of(tunnel string) *move {
	one := *m
	one.key.Name, one.target.Name = tunnel, tunnel
	return &one
}

func (m *move) report(format string, args ...any) { _, _ = fmt.Fprintf(m.out, format+"\n", args...) }

// run runs the remaining steps, for all Tunnels of the Cluster.
func (m *move) run(ctx context.Context) error {
	sources, err := m.sources(ctx)
	if err != nil {
		return err
	}
	if err := m.differ(ctx); err != nil {
		return err
	}
	for i := range sources {
		if err := m.of(sources[i].Name).enrol(ctx, &sources[i]); err != nil {
			return err
		}
	}
	if !m.flags.wait {
		return nil
	}
	for i := range sources {
		if err := m.of(sources[i].Name).waitEnrolled(ctx); err != nil {
			return err
		}
	}
	m.report("ready: every edge that is connected here is enrolled in the target")
	return nil
}

// enrol prepares one Tunnel in the target, and passes its bootstrap file to the edges.
func (m *move) enrol(ctx context.Context, source *v1alpha1.Tunnel) error {
	if err := m.prepareTarget(ctx, source.Spec); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	secret, err := join.WaitBootstrap(waiting, m.to, m.target)
	if err != nil {
		return fmt.Errorf("in the target: %w", err)
	}
	missing, err := m.missing(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	return m.deliver(ctx, secret)
}

// sources returns the Tunnels to move, which are those of the Cluster with connected edges.
func (m *move) sources(ctx context.Context) (connected []v1alpha1.Tunnel, err error) {
	var all v1alpha1.TunnelList
	if err := m.from.List(ctx, &all, client.InNamespace(m.cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	var idle []string
	for i := range all.Items {
		tunnel := &all.Items[i]
		switch {
		case tunnel.ClusterName() != m.cluster.Name:
			continue
		case !tunnel.DeletionTimestamp.IsZero():
			return nil, fmt.Errorf("the Tunnel %s is being deleted", client.ObjectKeyFromObject(tunnel))
		case notTunnelled(tunnel):
			idle = append(idle, tunnel.Name)
			continue
		case tunnel.HeldID() == "" || tunnel.Status.Served == nil:
			return nil, fmt.Errorf(
				"the Tunnel %s is not served: %s", client.ObjectKeyFromObject(tunnel), acceptedMessage(tunnel),
			)
		case len(m.carriers(tunnel, time.Now())) == 0:
			idle = append(idle, tunnel.Name)
			continue
		}
		connected = append(connected, *tunnel)
	}
	switch {
	case len(connected) == 0 && len(idle) == 0:
		return nil, fmt.Errorf( //nolint:staticcheck // a kind
			"Tunnel %s not found in namespace %s: the Cluster has not opted in, or was already moved", m.cluster.Name,
			m.cluster.Namespace,
		)
	case len(connected) == 0:
		return nil, fmt.Errorf(
			"no edge of the Tunnel %s is connected, so there is no edge to prepare: see `fairlead edge list -n %s %s`",
			strings.Join(idle, ", "), m.cluster.Namespace, m.cluster.Name,
		)
	case len(idle) > 0:
		m.report("left out, because no edge of them is connected: %s", strings.Join(idle, ", "))
	}
	return connected, nil
}

// notTunnelled reports whether a Tunnel needs no edge, because of its mode.
func notTunnelled(t *v1alpha1.Tunnel) bool {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionAccepted)
	return c != nil && c.Reason == v1alpha1.ReasonNotTunnelled
}

func acceptedMessage(t *v1alpha1.Tunnel) string {
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		return c.Message
	}
	return "the controller has not reconciled it yet"
}

// differ returns an error if both kubeconfigs lead to the same cluster, which would then use the same id twice.
func (m *move) differ(ctx context.Context) error {
	key := client.ObjectKey{Name: metav1.NamespaceSystem}
	var here, there corev1.Namespace
	if m.from.Get(ctx, key, &here) != nil || m.to.Get(ctx, key, &there) != nil {
		return nil // without this permission, the next step reports the error
	}
	if here.UID == there.UID {
		return errors.New("--to-kubeconfig: it is of the management cluster in which the Cluster is already")
	}
	return nil
}

// prepareTarget creates the Tunnel that waits for the Cluster, or extends its wait. Edges that are revoked at the
// source are revoked there too: `clusterctl move --from-directory` keeps a Tunnel that it finds (objectMover of
// Cluster API 1.14), and an edge may still have a certificate of the target from an earlier time.
func (m *move) prepareTarget(ctx context.Context, source v1alpha1.TunnelSpec) error {
	until := time.Now().Add(m.flags.lasts).UTC().Format(time.RFC3339)
	var have v1alpha1.Tunnel
	err := m.to.Get(ctx, m.target, &have)
	switch {
	case meta.IsNoMatchError(err):
		return errors.New("the target lacks the resource Tunnel: install Fairlead there first")
	case apierrors.IsNotFound(err):
		return m.createTarget(ctx, source, until)
	case err != nil:
		return fmt.Errorf("reading Tunnel in the target: %w", err)
	case !have.DeletionTimestamp.IsZero():
		return fmt.Errorf("the Tunnel %s in the target is being deleted: try again when it is gone", m.target)
	case have.ClaimedID() != source.ID:
		return fmt.Errorf(
			"the target has a Tunnel %s with another id, so it is another Cluster's: delete it there, or give --to-namespace",
			m.target,
		)
	case metav1.GetControllerOf(&have) != nil:
		m.report("target: the Cluster is there already")
		return nil
	}
	if _, waits := have.PreparedUntil(); !waits && have.Annotations[v1alpha1.PreparedAnnotation] == "" {
		m.report("target: Tunnel %s is there, and begins to wait for its Cluster", m.target)
	}
	want := have.DeepCopy()
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, v1alpha1.PreparedAnnotation, until)
	for _, node := range source.RevokedEdges {
		if !slices.Contains(have.Spec.RevokedEdges, node) {
			want.Spec.RevokedEdges = append(want.Spec.RevokedEdges, node)
		}
	}
	if err := m.to.Patch(ctx, want, client.MergeFrom(&have)); err != nil {
		return fmt.Errorf("patching Tunnel in the target: %w", err)
	}
	m.report("target: Tunnel %s waits for its Cluster until %s", m.target, until)
	return nil
}

func (m *move) createTarget(ctx context.Context, source v1alpha1.TunnelSpec, until string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.target.Namespace}}
	if err := m.to.Get(ctx, client.ObjectKeyFromObject(namespace), &corev1.Namespace{}); apierrors.IsNotFound(err) {
		if err := m.to.Create(ctx, namespace); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("creating namespace in the target: %w", err)
		}
	}
	tunnel := &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.target.Namespace, Name: m.target.Name,
			Annotations: map[string]string{v1alpha1.PreparedAnnotation: until},
		},
		Spec: v1alpha1.TunnelSpec{
			ID: source.ID, Network: source.Network, EgressOf: source.EgressOf, RevokedEdges: source.RevokedEdges,
		},
	}
	if err := m.to.Create(ctx, tunnel); apierrors.IsForbidden(err) {
		return fmt.Errorf(
			"creating Tunnel in the target: it takes the verbs create, and set-id in all namespaces, on tunnels.fairlead.dev "+
				"there: %w",
			err,
		)
	} else if err != nil {
		return fmt.Errorf("creating Tunnel in the target: %w", err)
	}
	m.report("target: Tunnel %s made, it waits for its Cluster until %s", m.target, until)
	return nil
}
