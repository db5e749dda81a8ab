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
		Short: "Give the agent that runs one more tunnel, whose bootstrap file is read from standard input",
		Long: strings.TrimSpace(`
Give the agent that runs with a state folder one more tunnel, whose bootstrap file is read from standard input, and wait
until it has a certificate for it. Its other tunnels notice nothing. "fairlead move prepare" does this at each edge of a
Cluster that is to be moved to another management cluster; here is what to do by hand where it can't.

The file stays in the state folder, so the agent has the tunnel after a restart too. It can be given again at any time.
A failure says why there is no certificate yet; the agent goes on trying.`),
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
	cmd.Flags().StringVar(&dir, "state-dir", stateDir, "state folder of the agent that runs")
	cmd.Flags().DurationVar(&timeout, "timeout", joinTimeout, "how long to wait for a certificate")
	return cmd
}

func leaveCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "leave NAME",
		Short: "Take back a tunnel that was given by edge-agent join, under the name that it printed",
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
