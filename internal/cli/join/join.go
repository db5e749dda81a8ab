// Package join is the command join: it waits for the bootstrap Secret of a Cluster, and prints the one command that
// starts an edge.
package join

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
)

// joinFlags are the flags of join.
type joinFlags struct {
	management.Flags
	image     management.ImageFlags
	form      string
	enable    bool
	podTokens bool
	timeout   time.Duration
}

const joinHelp = `
Print a shell command that starts an edge for a Cluster. It contains the bootstrap file of the Cluster. Use it
for Clusters whose machines exist already; new machines get their edges when they boot.

The bootstrap file contains a token, valid for at most a day, with which a machine enrols as an edge of this
Cluster. Treat the output as a password.

  --form       what the printed command does                       where to run it
  command      write the bootstrap file, run edge-agent            root shell in the workload network
  systemd      write the bootstrap file and two units              root shell of a machine with edge-agent
                                                                   and envoy in /usr/local/bin
  static-pod   write the bootstrap file and a manifest             root shell of a control-plane node
  deployment   apply a Namespace, a Secret, a ServiceAccount       any shell with kubectl and a kubeconfig
               and a Deployment                                    of the workload cluster

For the form deployment, the command also sets spec.edgeServiceAccount of the Tunnel, unless it is set: Pods
that start after the token has expired enrol with the token of that ServiceAccount. --pod-tokens=false does
not set it.

Needs: get on Clusters, Tunnels and Secrets of the namespace; patch on Clusters for --enable, and
on Tunnels for the form deployment; for the forms with an image, without --image, get on the ConfigMap
fairlead-settings of the installation. The Cluster must have opted in.
Changes: the label fairlead.dev/tunnel of the Cluster with --enable; spec.edgeServiceAccount of the Tunnel
with the form deployment.
Exit codes: 0 the command was printed; 1 the Cluster has not opted in or got no bootstrap Secret in time, or
the command failed; 2 the command line is invalid.`

// Command returns the command join.
func Command() *cobra.Command {
	var f joinFlags
	cmd := &cobra.Command{
		Use:   "join CLUSTER",
		Short: "Print a shell command that starts an edge for a Cluster",
		Long:  strings.TrimSpace(joinHelp),
		Example: "  fairlead join -n prod c1 --form=deployment | KUBECONFIG=c1.kubeconfig sh\n  fairlead join -n prod c1 " +
			"--form=systemd | ssh root@machine sh",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := forms[f.form]
			if !ok {
				return output.UsageError("--form: %q is invalid: must be command, systemd, static-pod or deployment", f.form)
			}
			c, namespace, err := f.Client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			key := client.ObjectKey{Namespace: namespace, Name: args[0]}
			if err := f.optIn(ctx, c, key); err != nil {
				return err
			}
			secret, err := WaitBootstrap(ctx, c, key)
			if err != nil {
				return err
			}
			image := ""
			if f.form == "static-pod" || f.form == "deployment" {
				image = f.image.Image(ctx, &f.Flags, cmd.ErrOrStderr())
			}
			text, err := write(secret, image)
			if err != nil {
				return err
			}
			if f.form == "deployment" && f.podTokens {
				if err := letPodsEnrol(ctx, c, key); err != nil {
					return err
				}
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	f.addTo(cmd)
	return cmd
}

func (f *joinFlags) addTo(cmd *cobra.Command) {
	f.AddTo(cmd.Flags())
	cmd.Flags().
		StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the Cluster (default: the namespace of the context)")
	cmd.Flags().StringVar(&f.form, "form", "command", "how the edge runs: command, systemd, static-pod or deployment")
	f.image.AddTo(cmd.Flags(), ", for static-pod and deployment")
	cmd.Flags().BoolVar(&f.enable, "enable", false, "opt the Cluster in if it has not opted in")
	cmd.Flags().BoolVar(
		&f.podTokens, "pod-tokens", true,
		"for deployment: let Pods of the ServiceAccount fairlead-edge enrol with its token, by spec.edgeServiceAccount",
	)
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the bootstrap Secret")
}

// letPodsEnrol sets spec.edgeServiceAccount to the ServiceAccount of the Deployment, unless the Tunnel has one.
func letPodsEnrol(ctx context.Context, c client.Client, key client.ObjectKey) error {
	var tunnel v1alpha1.Tunnel
	if err := c.Get(ctx, key, &tunnel); err != nil {
		return fmt.Errorf("reading Tunnel: %w", err)
	}
	if tunnel.Spec.EdgeServiceAccount != nil {
		return nil
	}
	want := tunnel.DeepCopy()
	want.Spec.EdgeServiceAccount = &v1alpha1.EdgeServiceAccount{Namespace: deploymentName, Name: deploymentName}
	if err := c.Patch(ctx, want, client.MergeFrom(&tunnel)); err != nil {
		return fmt.Errorf(
			"setting spec.edgeServiceAccount of the Tunnel, which --pod-tokens=false leaves out: %w", err,
		)
	}
	return nil
}

// optIn returns an error if the Cluster does not exist or gets no tunnel. With --enable it opts the Cluster in.
func (f *joinFlags) optIn(ctx context.Context, c client.Client, key client.ObjectKey) error {
	var cluster clusterv1.Cluster
	err := c.Get(ctx, key, &cluster)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf( //nolint:staticcheck // Cluster is a kind
			"Cluster %s not found in namespace %s: `kubectl get clusters -A` lists all",
			key.Name,
			key.Namespace,
		)
	case err != nil:
		return fmt.Errorf("reading Cluster: %w", err)
	case !cluster.DeletionTimestamp.IsZero():
		return fmt.Errorf("the Cluster %s is being deleted", key)
	case cluster.Labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelEnabled:
		return nil
	}
	if !f.enable {
		return f.optedIn(ctx, c, &cluster)
	}
	want := cluster.DeepCopy()
	metav1.SetMetaDataLabel(&want.ObjectMeta, v1alpha1.TunnelLabel, v1alpha1.TunnelEnabled)
	if err := c.Patch(ctx, want, client.MergeFrom(&cluster)); err != nil {
		return fmt.Errorf("labelling Cluster: %w", err)
	}
	return nil
}

// optedIn checks for a Tunnel, because the controller may be configured to give a tunnel to every Cluster.
func (f *joinFlags) optedIn(ctx context.Context, c client.Client, cluster *clusterv1.Cluster) error {
	key := client.ObjectKeyFromObject(cluster)
	notYet := fmt.Errorf(
		"the Cluster %s has not opted in: label it with %s=%s, or use --enable", key, v1alpha1.TunnelLabel,
		v1alpha1.TunnelEnabled,
	)
	if cluster.Labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelDisabled {
		return notYet
	}
	switch err := c.Get(ctx, key, &v1alpha1.Tunnel{}); {
	case apierrors.IsNotFound(err):
		return notYet
	case err != nil:
		return fmt.Errorf("reading Tunnel: %w", err)
	}
	return nil
}

// WaitBootstrap waits for the bootstrap Secret of a Cluster's Tunnel. It returns an error if there will be none.
func WaitBootstrap(ctx context.Context, c client.Client, key client.ObjectKey) (*corev1.Secret, error) {
	again := time.NewTicker(management.PollInterval)
	defer again.Stop()
	for {
		secret, wait, err := readBootstrap(ctx, c, key)
		if wait == nil {
			return secret, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf(
				"waiting for the Secret %s%s in namespace %s: %w", key.Name, v1alpha1.BootstrapSecretSuffix, key.Namespace, wait,
			)
		case <-again.C:
		}
	}
}

// errNoTunnel reports that no Tunnel was made in time.
var errNoTunnel = errors.New(
	"no Tunnel yet: check that the controller of Fairlead runs, and that the Cluster is not paused",
)

// readBootstrap returns the Secret, a reason to wait for it, or an error if waiting is useless.
func readBootstrap(
	ctx context.Context, c client.Client, key client.ObjectKey,
) (secret *corev1.Secret, wait, err error) {
	tunnel := &v1alpha1.Tunnel{}
	switch err := c.Get(ctx, key, tunnel); {
	case apierrors.IsNotFound(err):
		return nil, errNoTunnel, nil
	case meta.IsNoMatchError(err):
		return nil, nil, errors.New("this management cluster lacks the resource Tunnel: Fairlead is not installed there")
	case err != nil:
		return nil, fmt.Errorf("reading Tunnel: %w", err), nil
	}
	accepted := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionAccepted)
	switch {
	case accepted == nil || accepted.ObservedGeneration != tunnel.Generation:
		return nil, errors.New("the controller has not reconciled the Tunnel yet: check that it runs"), nil
	case accepted.Reason == v1alpha1.ReasonNotTunnelled:
		return nil, nil, fmt.Errorf("the Tunnel %s needs no edge: %s", key, accepted.Message)
	case accepted.Status == metav1.ConditionFalse && !v1alpha1.ServedInPart(accepted.Reason):
		return nil, nil, fmt.Errorf("the Tunnel %s is not accepted: %s", key, accepted.Message)
	}
	secret = &corev1.Secret{}
	err = c.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name + v1alpha1.BootstrapSecretSuffix}, secret)
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading bootstrap Secret: %w", err), nil
	case !metav1.IsControlledBy(secret, tunnel) || len(secret.Data[v1alpha1.BootstrapFileKey]) == 0:
		return nil, errors.New("it does not contain the bootstrap file of this Tunnel yet"), nil
	}
	return secret, nil, nil
}
