package cli

import (
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/version"
)

// builtAs describes the build of the program.
type builtAs struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Envoy   string `json:"envoy"`
	Go      string `json:"go"`
}

func versionCommand() *cobra.Command {
	var o output.Options
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the version of Envoy",
		Long: strings.TrimSpace(`
Print the version of this program, the commit and the Go toolchain that built it, and the version of Envoy
that it is made for.

Needs: nothing.
Changes: nothing.
Exit codes: 0 success; 1 the command failed; 2 the command line is invalid.`),
		Example: "  fairlead version\n  fairlead version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := builtAs{version.Get(), version.Commit(), version.Envoy, runtime.Version()}
			return o.Print(
				cmd, output.View{Data: v, Page: func(p *output.Page) { p.Line(output.Plain(version.Line())) }},
			)
		},
	}
	o.AddTo(cmd)
	return cmd
}
