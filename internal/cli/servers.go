package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pkg/inspect"
)

// serversFlags say how the xds-servers are asked what they know.
type serversFlags struct {
	installation string   // namespace of the installation
	addresses    []string // empty: by port-forwarding to their Pods
}

func (f *serversFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.installation, "installation", inspect.DefaultNamespace, "namespace in which Fairlead is installed")
	cmd.Flags().StringSliceVar(&f.addresses, "xds-server", nil, "host:port of the inspection of xds-servers; by default their Pods are asked, through port-forwarding")
	_ = cmd.RegisterFlagCompletionFunc("xds-server", cobra.NoFileCompletions)
}

// connect finds the xds-servers.
func (f *serversFlags) connect(ctx context.Context, m *management) (*inspect.Servers, error) {
	return inspect.Connect(ctx, inspect.Options{REST: m.config, Namespace: f.installation, Addresses: f.addresses})
}
