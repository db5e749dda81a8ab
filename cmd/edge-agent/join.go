package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pkg/agent/edge"
)

// joinTimeout is longer than the agent needs to find the file and to enrol at the first attempt.
const joinTimeout = time.Minute

func joinCommand() *cobra.Command {
	var dir string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Add a tunnel to the running agent; its bootstrap file is read from standard input",
		Long: strings.TrimSpace(`
Add a tunnel to the agent that runs with this state folder, and wait until the agent has a certificate for it. The
bootstrap file is read from standard input. The other tunnels of the agent are not affected. "fairlead move prepare"
runs this command at each edge of a Cluster that moves to another management cluster; run it by hand where
"fairlead move prepare" cannot.

The file stays in the state folder, so the agent keeps the tunnel after a restart. The command can be repeated at any
time. After a failure it prints why there is no certificate yet; the agent keeps retrying.`),
		Example: "  edge-agent join <bootstrap.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), edge.MaxBootstrapFile+1))
			if err != nil {
				return fmt.Errorf("reading bootstrap file from standard input: %w", err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			joined, err := edge.Join(ctx, dir, data)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "joined %s as %s\n", joined.Name, joined.Node)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", stateDir, "state folder of the running agent")
	cmd.Flags().DurationVar(&timeout, "timeout", joinTimeout, "how long to wait for a certificate")
	return cmd
}

func leaveCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "leave NAME",
		Short: "Remove a tunnel that edge-agent join added, by the name that it printed",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := edge.Leave(dir, args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "left %s\n", args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "state-dir", stateDir, "state folder of the agent")
	return cmd
}
