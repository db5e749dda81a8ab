package command

import "github.com/spf13/cobra"

// Group is a command that only has others.
func Group(use, short string, of ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs, // an unknown one is an error, and not a reason to print help and be content
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(of...)
	return cmd
}
