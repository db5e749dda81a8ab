// Command fairlead is for people: it shows what Fairlead makes of their configuration.
package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/command"
)

func main() { command.Main(run) }

// run is the whole program; the result is its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "fairlead", Short: "Look at Fairlead"}
	root.AddCommand(renderCommand(), versionCommand())
	return command.Run(ctx, root, args, stdout, stderr)
}
