// Command fairlead shows the state of Fairlead, finds what is broken, and performs operations that need an operator's
// decision. Its commands are in internal/cli.
package main

import (
	"context"
	"io"
	"os"

	"github.com/fairlead/fairlead/internal/cli"
	"github.com/fairlead/fairlead/internal/command"
)

func main() {
	command.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return cli.Run(ctx, os.Args[0], args, stdout, stderr)
	})
}
