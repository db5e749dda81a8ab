// Command fairlead is for people: it shows what Fairlead makes of their configuration, and does what takes a person's decision:
// letting an edge in, preparing a move, rotating the CA, revoking an edge.
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
	root := &cobra.Command{Use: "fairlead", Short: "Look at Fairlead, and decide what only a person can"}
	root.AddCommand(caCommand(), edgeCommand(), joinCommand(), moveCommand(), renderCommand(), versionCommand())
	return command.Run(ctx, root, args, stdout, stderr)
}
