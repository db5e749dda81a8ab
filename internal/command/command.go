// Package command is the frame of every program: signals end its context, errors are printed in one place, and the exit
// code is chosen there. It does not know what a program does.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Main calls run with the arguments and streams of the process, and exits with the code that run returns. The context
// ends with SIGINT or SIGTERM.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Error is an error that sets an exit code. If Err is nil, nothing is printed.
type Error struct {
	Code int // not 0
	Err  error
}

// Error returns the text of Err, or "exit code <Code>" if Err is nil.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Run executes a command. It returns 0, or prints the error after the program's name and returns the code of the *Error
// in it, or else 1.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	code, coded := 1, &Error{}
	if errors.As(err, &coded) {
		code = coded.Code
	}
	if coded.Err != nil || coded.Code == 0 {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", root.DisplayName(), err)
	}
	return code
}
