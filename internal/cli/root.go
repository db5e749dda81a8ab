// Package cli is the command line of fairlead: its input is arguments and two streams, its output is an exit code. It
// combines the commands of the packages below it into one tree, with completions. Each command's behaviour is in its
// own package.
package cli

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/internal/cli/bundle"
	"github.com/fairlead/fairlead/internal/cli/ca"
	"github.com/fairlead/fairlead/internal/cli/check"
	"github.com/fairlead/fairlead/internal/cli/config"
	"github.com/fairlead/fairlead/internal/cli/edge"
	"github.com/fairlead/fairlead/internal/cli/join"
	"github.com/fairlead/fairlead/internal/cli/kubeconfig"
	"github.com/fairlead/fairlead/internal/cli/move"
	"github.com/fairlead/fairlead/internal/cli/network"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/cli/proxy"
	"github.com/fairlead/fairlead/internal/cli/render"
	"github.com/fairlead/fairlead/internal/cli/status"
	"github.com/fairlead/fairlead/internal/cli/test"
	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/kubelog"
)

// The names under which kubectl runs a plugin and requests its completions. Both are links to this program.
const (
	pluginName     = "kubectl-fairlead"
	completionName = "kubectl_complete-fairlead"
)

// Run runs the program under the name that started it, and returns its exit code.
func Run(ctx context.Context, name string, args []string, stdout, stderr io.Writer) int {
	name = strings.TrimSuffix(filepath.Base(name), ".exe")
	quiet()
	root := newRoot()
	switch name {
	case completionName: // kubectl passes on the words to complete
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
		fallthrough
	case pluginName:
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl fairlead"}
	}
	return command.Run(ctx, root, args, stdout, stderr)
}

// quiet disables the logs of the libraries, which would mix with the output. Relevant problems are returned as errors.
func quiet() {
	kubelog.SetLogger(slog.New(slog.DiscardHandler))
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
}

// newRoot returns the tree of commands.
func newRoot() *cobra.Command {
	root := command.Group(
		"fairlead", "Inspect and operate Fairlead", ca.Command(), check.Command(), config.Command(), edge.Command(),
		join.Command(), kubeconfig.Command(), move.Command(), network.Command(), proxy.Command(), render.Command(),
		status.Command(), bundle.Command(newRoot), test.Command(newRoot), versionCommand(),
	)
	root.Long = strings.TrimSpace(`
Inspect Fairlead, find faults, enrol and revoke edges, and rotate the CA.

The commands use your kubeconfig of the management cluster and your permissions there. With a link named
kubectl-fairlead in PATH, they are available as "kubectl fairlead" too.

Exit codes: 0 success; 1 a fault was found, or the command failed; 2 the command line is invalid.
Colours and progress are printed on terminals only; NO_COLOR=1 disables colours.`)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return output.UsageError("%w", err) })
	addCompletions(root)
	checkUsage(root)
	return command.Versioned(root)
}

// checkUsage gives all usage errors the same exit code. It makes the checks that cobra would make later.
func checkUsage(cmd *cobra.Command) {
	validate := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.HasSubCommands() && len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		for _, check := range []func() error{
			func() error { return validate(cmd, args) }, cmd.ValidateRequiredFlags,
			cmd.ValidateFlagGroups,
		} {
			if err := check(); err != nil {
				return output.UsageError("%w: see `%s --help`", err, cmd.CommandPath())
			}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		checkUsage(sub)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	if cmd.SuggestionsMinimumDistance = 2; len(cmd.SuggestionsFor(name)) > 0 {
		hint = ", did you mean " + strings.Join(cmd.SuggestionsFor(name), " or ") + "?"
	}
	return output.UsageError(
		"unknown command %q for %q%s: see `%s --help`",
		name,
		cmd.CommandPath(),
		hint,
		cmd.CommandPath(),
	)
}
