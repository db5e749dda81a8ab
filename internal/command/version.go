package command

import (
	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/version"
)

// Versioned adds the flag --version to a program, which prints the program's name and its build, and returns the
// program. Other flags and arguments are then not validated.
func Versioned(program *cobra.Command) *cobra.Command {
	program.Version = version.Line()
	program.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	program.Flags().Bool("version", false, "print the version, the commit and the version of Envoy, and exit")
	return program
}
