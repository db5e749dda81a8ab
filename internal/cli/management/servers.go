package management

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// ServersFlags configure how the xds-servers are reached.
type ServersFlags struct {
	Installation string   // namespace of the installation
	Addresses    []string // empty: port-forwarding to their Pods
}

// AddTo adds --installation and --xds-server.
func (f *ServersFlags) AddTo(cmd *cobra.Command) {
	cmd.Flags().
		StringVar(&f.Installation, "installation", collect.DefaultNamespace, "namespace in which Fairlead is installed")
	cmd.Flags().
		StringSliceVar(&f.Addresses, "xds-server", nil, "host:port of the inspection of xds-servers (default: query their "+
			"Pods through port-forwarding)")
	_ = cmd.RegisterFlagCompletionFunc("xds-server", cobra.NoFileCompletions)
}

// Connect finds the xds-servers.
func (f *ServersFlags) Connect(ctx context.Context, m *Client) (*collect.Servers, error) {
	return collect.Connect(ctx, collect.Options{REST: m.Config, Namespace: f.Installation, Addresses: f.Addresses})
}
