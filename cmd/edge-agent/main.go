// Command edge-agent runs an edge: it enrols with bootstrap tokens, keeps its certificates valid, and runs the Envoy
// that dials the gateways.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/agent"
	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
)

// stateDir is the conventional folder for the state of a program.
const stateDir = "/var/lib/fairlead/edge"

func main() { command.Main(run) }

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return command.Run(ctx, rootCommand(args), args, stdout, stderr)
}

func rootCommand(args []string) *cobra.Command {
	root := &cobra.Command{Use: "edge-agent", Short: "Runs the edge of a Fairlead tunnel"}
	root.AddCommand(runCommand(), joinCommand(), leaveCommand(), bootstrapCommand(), reportCommand(args), versionCommand())
	return command.Versioned(root)
}

func runCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Enrol, and run Envoy until SIGTERM",
		Long: strings.TrimSpace(`
Enrol, and keep tunnels from this machine to the gateways of a management cluster until SIGTERM.

It requires one file: the bootstrap file of a Cluster, from the key bootstrap.yaml of the Secret
<cluster>-edge-bootstrap in the namespace of the Cluster. The file has the id of the tunnel, the address
of the gateways, the CA to trust and a token. The token is used once; afterwards the certificate in the
state folder is renewed with its own key. The file is required again only if the xds-server permanently
rejects that certificate.

The machine must reach the gateways' public port, directly or through an HTTP proxy, and the apiserver
of the workload cluster. It needs no inbound connections.

With several --bootstrap files one edge serves several Clusters, each with its own certificate.
TLS-inspecting proxies are not supported: exempt the gateways from inspection.`),
		Example: strings.TrimSpace(`
  # One tunnel: copy the file to the machine, and start.
  kubectl -n prod get secret c1-edge-bootstrap -o jsonpath='{.data.bootstrap\.yaml}' | base64 -d > bootstrap.yaml
  edge-agent run --bootstrap=/etc/fairlead/bootstrap.yaml --health-listen=127.0.0.1:8081

  # Behind a proxy that requires a password, on a control-plane node: its own apiserver is dialled first.
  edge-agent run --bootstrap=/etc/fairlead/bootstrap.yaml --proxy=http://proxy.corp:3128 \
    --proxy-credentials-file=/etc/fairlead/proxy --local-apiserver=127.0.0.1:6443

  # Two Clusters, two addresses of the gateways, and only these apiservers, even if a Tunnel names others.
  edge-agent run --bootstrap=/etc/fairlead/c1.yaml --bootstrap=/etc/fairlead/c2.yaml \
    --gateway=gw1.example.com:443 --gateway=gw2.example.com:443 \
    --allow-target=10.0.0.10:6443 --allow-target=10.0.1.10:6443`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.log, err = o.logging.New(cmd.ErrOrStderr()); err != nil {
				return err
			}
			o.proxyGiven = cmd.Flags().Changed("proxy")
			if o.agent.Edges, err = o.edges(); err != nil {
				return err
			}
			o.agent.Joined = o.joined
			leave := make(chan os.Signal, 1)
			signal.Notify(leave, syscall.SIGHUP)
			defer signal.Stop(leave)
			o.agent.Leave = leave
			a, err := agent.New(o.agent, o.log)
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	o.addTo(cmd)
	return cmd
}

func bootstrapCommand() *cobra.Command {
	var config agent.Config
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Write " + envoyproc.BootstrapFileName + " for an Envoy that the agent does not start, and exit",
		Long: strings.TrimSpace(`
Write ` + envoyproc.BootstrapFileName + ` into the runtime folder, and exit: for an Envoy in its own container. The
container of "edge-agent run --envoy-external" must share the folder and run as the same user. Start that
Envoy in the folder with

  envoy ` + strings.Join(envoyproc.ExternalArguments(), " ")),
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return agent.WriteBootstrap(config) },
	}
	config.AddBootstrapFlags(cmd.Flags(), stateDir)
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the version of Envoy",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Line())
			return err
		},
	}
}
