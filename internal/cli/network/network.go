// Package network is the command group network: a list of RemoteNetworks, the command that starts an edge of one, and
// what apiservers need to reach the networks of their Cluster.
package network

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/join"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/pkg/capi/egress"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// flags are the flags of all commands of the group.
type flags struct{ management.Flags }

func (f *flags) addTo(cmd *cobra.Command) {
	f.AddTo(cmd.Flags())
	cmd.Flags().StringVarP(
		&f.Namespace, "namespace", "n", "", "namespace of the Cluster (default: the namespace of the context)",
	)
}

// Command returns the command group network.
func Command() *cobra.Command {
	return command.Group(
		"network", "List networks of workers, start their edges, and connect apiservers to them", egressCommand(),
		joinCommand(), listCommand(),
	)
}

// egressForms map each kind of control plane to what it needs.
var egressForms = map[string]func(egress.Params) []byte{
	"kamaji":    egress.Kamaji,
	"kubeadm":   egress.Kubeadm,
	"k0smotron": egress.K0smotron,
	"files":     nil, // of several arguments
}

const egressHelp = `
Print what the apiservers of a Cluster need to reach its RemoteNetworks: an EgressSelectorConfiguration, the
flags of kube-apiserver, and a container beside it that enrols and renews its certificate. The output has no
token: it refers to the Secret <cluster>.egress-edge-bootstrap.

  --for       prints
  kamaji      a ConfigMap, and fields of a KamajiControlPlane or a TenantControlPlane
  kubeadm     fields of a KubeadmControlPlane
  k0smotron   a ConfigMap, and fields of a K0smotronControlPlane
  files       the parts for any other apiserver

Needs: with --image nothing: of the kubeconfig it reads only the namespace of the context; without --image,
get on the ConfigMap fairlead-settings of the installation.
Changes: nothing.
Exit codes: 0 it was printed; 1 the command failed; 2 the command line is invalid.`

func egressCommand() *cobra.Command {
	var f flags
	var params egress.Params
	var image management.ImageFlags
	var form, gateway string
	cmd := &cobra.Command{
		Use:   "egress CLUSTER",
		Short: "Print what the apiservers of a Cluster need to reach its networks",
		Long:  strings.TrimSpace(egressHelp),
		Example: "  fairlead network egress -n prod c1 --for=kamaji " +
			"--image=registry.example.com/fairlead/fairlead-edge:v0.1.0\n" +
			"  fairlead network egress -n prod c1 --for=kubeadm --endpoints=false",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := egressForms[form]
			if !ok {
				return output.UsageError("--for: %q is invalid: must be kamaji, kubeadm, k0smotron or files", form)
			}
			namespace, _, err := f.Loader().Namespace()
			if err != nil {
				return fmt.Errorf("reading kubeconfig of the management cluster: %w", err)
			}
			params.Cluster, params.Namespace = args[0], namespace
			params.Image = image.Image(cmd.Context(), &f.Flags, cmd.ErrOrStderr())
			if err := params.Validate(); err != nil {
				return output.UsageError("%w", err)
			}
			if write == nil {
				write = func(p egress.Params) []byte { return egress.Files(p, plain(gateway)) }
			}
			_, err = cmd.OutOrStdout().Write(write(params))
			return err
		},
	}
	f.addTo(cmd)
	cmd.Flags().StringVar(&form, "for", "files", "kind of control plane: kamaji, kubeadm, k0smotron or files")
	image.AddTo(cmd.Flags(), "")
	cmd.Flags().BoolVar(
		&params.Endpoints, "endpoints", true,
		"dial endpoints of Services, not ClusterIPs: required unless a network contains the service CIDR",
	)
	cmd.Flags().StringVar(
		&gateway, "gateway-url", "",
		"for files: https://gateway.<tunnel domain>:<port>, for an apiserver without a container beside it",
	)
	return cmd
}

// plain returns the way of an apiserver that dials the gateways itself; nil: it has a container.
func plain(url string) *egress.Gateway {
	if url == "" {
		return nil
	}
	const dir = "/etc/kubernetes/fairlead-egress/"
	return &egress.Gateway{URL: url, CABundle: dir + "ca.pem", ClientKey: dir + "key.pem", Leaf: dir + "leaf.pem"}
}

const joinHelp = `
Print a shell command that starts an edge of a RemoteNetwork, in the network. It contains the bootstrap file of
the network. The file contains a token, valid for at most a day, with which a machine enrols as an edge of this
network. Treat the output as a password.

  --form       what the printed command does                       where to run it
  command      write the bootstrap file, run edge-agent            root shell in the network
  systemd      write the bootstrap file and two units              root shell of a machine with edge-agent
                                                                   and envoy in /usr/local/bin
  static-pod   write the bootstrap file and a manifest             root shell of a machine with a kubelet
  daemonset    apply a Namespace, a Secret and a DaemonSet         any shell with kubectl and a kubeconfig
                                                                   of the workload cluster

The Secret of the form daemonset has this one token: at most 32 machines (--token-uses of the controller) enrol
with it. Run the command again when machines are added or replaced. Pods that wait read the Secret again.

With --apiserver-listen, machines in the network reach the apiserver of their Cluster at that address.

Needs: get on RemoteNetworks, Tunnels and Secrets of the namespace; for the forms with an image, without
--image, get on the ConfigMap fairlead-settings of the installation.
Changes: nothing.
Exit codes: 0 the command was printed; 1 the network got no bootstrap Secret in time, or the command failed;
2 the command line is invalid.`

// joinFlags are the flags of join.
type joinFlags struct {
	flags
	image               management.ImageFlags
	form, listen, nodes string
	timeout             time.Duration
}

func joinCommand() *cobra.Command {
	var f joinFlags
	cmd := &cobra.Command{
		Use:   "join NETWORK",
		Short: "Print a shell command that starts an edge of a RemoteNetwork",
		Long:  strings.TrimSpace(joinHelp),
		Example: "  fairlead network join -n prod oslo --form=systemd --apiserver-listen=10.1.0.1:6443 | ssh root@vm1 sh\n" +
			"  fairlead network join -n prod oslo --form=daemonset --node-selector=site=oslo | KUBECONFIG=c1.kubeconfig sh",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.addTo(cmd)
	cmd.Flags().StringVar(&f.form, "form", "command", "how the edge runs: command, systemd, static-pod or daemonset")
	f.image.AddTo(cmd.Flags(), ", for static-pod and daemonset")
	cmd.Flags().StringVar(
		&f.listen, "apiserver-listen", "", "IP:port at which machines in the network reach their apiserver (default: none)",
	)
	cmd.Flags().StringVar(
		&f.nodes, "node-selector", "",
		"labels of the machines of the network, as site=oslo, for daemonset (default: all nodes of the Cluster)",
	)
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the bootstrap Secret")
	return cmd
}

// run prints the command for a network.
func (f *joinFlags) run(cmd *cobra.Command, name string) error {
	write, ok := join.NetworkForms[f.form]
	if !ok {
		return output.UsageError("--form: %q is invalid: must be command, systemd, static-pod or daemonset", f.form)
	}
	if err := checkListen(f.listen); err != nil {
		return output.UsageError("--apiserver-listen: %w", err)
	}
	nodes, err := labels.ConvertSelectorToLabelsMap(f.nodes)
	switch {
	case err != nil:
		return output.UsageError("--node-selector: %q is not a list of LABEL=VALUE: %w", f.nodes, err)
	case len(nodes) > 0 && f.form != "daemonset":
		return output.UsageError("--node-selector is for --form=daemonset: remove it")
	}
	c, namespace, err := f.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	key := client.ObjectKey{Namespace: namespace, Name: name}
	if _, err := read(ctx, c, key); err != nil {
		return err
	}
	key.Name += v1alpha1.NetworkTunnelSuffix
	secret, err := join.WaitBootstrap(ctx, c, key)
	if err != nil {
		return err
	}
	image := ""
	if f.form == "static-pod" || f.form == "daemonset" {
		image = f.image.Image(ctx, &f.Flags, cmd.ErrOrStderr())
	}
	text, err := write(secret, image, f.listen, nodes)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}

// checkListen returns an error for an address at which no edge listens.
func checkListen(listen string) error {
	if listen == "" {
		return nil
	}
	at, err := model.ParseEndpoint(listen)
	if err != nil {
		return err
	}
	return envoy.CheckListen(at)
}

// read returns a RemoteNetwork, or an error if there is none of this name.
func read(ctx context.Context, c client.Client, key client.ObjectKey) (n v1alpha1.RemoteNetwork, err error) {
	err = c.Get(ctx, key, &n)
	switch {
	case apierrors.IsNotFound(err):
		return n, fmt.Errorf(
			"RemoteNetwork %s not found in namespace %s: `fairlead network list -A` lists all", key.Name, key.Namespace,
		)
	case err != nil:
		return n, fmt.Errorf("reading RemoteNetwork: %w", management.ExplainMissing(err))
	}
	return n, nil
}

// networks returns the RemoteNetworks of a namespace, or the one with a name.
func networks(
	ctx context.Context, c client.Client, namespace string, name []string,
) ([]v1alpha1.RemoteNetwork, error) {
	if len(name) == 1 {
		one, err := read(ctx, c, client.ObjectKey{Namespace: namespace, Name: name[0]})
		return []v1alpha1.RemoteNetwork{one}, err
	}
	var found v1alpha1.RemoteNetworkList
	if err := c.List(ctx, &found, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing RemoteNetworks: %w", management.ExplainMissing(err))
	}
	return found.Items, nil
}

func listCommand() *cobra.Command {
	var f flags
	var o output.Options
	var all bool
	cmd := &cobra.Command{
		Use:   "list [NETWORK]",
		Short: "List RemoteNetworks",
		Long: strings.TrimSpace(`
List the RemoteNetworks of a namespace, or one: Cluster, readiness, connected edges, and what is wrong.

Needs: list on RemoteNetworks; with NETWORK, only get on that RemoteNetwork.
Changes: nothing.
Exit codes: 0 success, whatever the state of the networks; 1 the command failed; 2 the command line is invalid.`),
		Example: "  fairlead network list -A\n  fairlead network list -n prod -o wide\n  fairlead network list -n prod site1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all && len(args) > 0 {
				return output.UsageError("a RemoteNetwork is in one namespace: give --namespace instead of --all-namespaces")
			}
			c, namespace, err := f.Client()
			if err != nil {
				return err
			}
			if all {
				namespace = ""
			}
			found, err := networks(cmd.Context(), c, namespace, args)
			if err != nil {
				return err
			}
			return o.Print(cmd, networksView(found))
		},
	}
	f.addTo(cmd)
	o.AddTo(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the networks of all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// networkRow is one network, for machines.
type networkRow struct {
	Namespace      string   `json:"namespace"`
	Network        string   `json:"network"`
	Cluster        string   `json:"cluster"`
	Ready          string   `json:"ready"` // True, False or Unknown
	ConnectedEdges int32    `json:"connectedEdges"`
	CIDRs          []string `json:"cidrs,omitempty"`
	Message        string   `json:"message,omitempty"` // why it is not ready
}

// networksView returns the table of networks.
func networksView(networks []v1alpha1.RemoteNetwork) output.View {
	t := &output.Table{Columns: output.Columns("NAMESPACE", "NETWORK", "CLUSTER", "READY", "EDGES", "CIDRS+", "MESSAGE")}
	styles := map[string]output.Style{
		string(metav1.ConditionTrue): output.StyleGood, string(metav1.ConditionFalse): output.StyleBad,
		string(metav1.ConditionUnknown): output.StyleWarning,
	}
	rows := []networkRow{}
	for _, n := range networks {
		row := networkRow{
			Namespace: n.Namespace, Network: n.Name, Cluster: n.Spec.ClusterName, Ready: string(metav1.ConditionUnknown),
			ConnectedEdges: n.Status.ConnectedEdges, CIDRs: n.Spec.CIDRs,
		}
		if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			row.Ready = string(c.Status)
			if c.Status != metav1.ConditionTrue {
				row.Message = c.Message
			}
		}
		rows = append(rows, row)
		t.Add(
			row.Namespace+"/"+row.Network, row, output.Plain(row.Namespace), output.Plain(row.Network),
			output.Plain(row.Cluster), output.Styled(styles[row.Ready], row.Ready),
			output.Plain(strconv.Itoa(int(row.ConnectedEdges))), output.Plain(strings.Join(row.CIDRs, ",")),
			output.Plain(row.Message),
		)
	}
	return output.View{Data: map[string]any{"networks": rows}, Table: t, Empty: "there is no RemoteNetwork"}
}
