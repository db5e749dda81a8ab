package command

import "github.com/spf13/cobra"

// Group returns a command that only has subcommands.
func Group(use, short string, of ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		// an unknown subcommand is an error; cobra would print the help and succeed
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(of...)
	return cmd
}
