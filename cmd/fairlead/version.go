package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/version"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Get(), runtime.Version())
			return err
		},
	}
}
