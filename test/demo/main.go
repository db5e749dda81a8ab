// Command demo shows, step by step and with real programs, Cluster API managing two workload clusters that it cannot
// dial. It runs until Ctrl-C. With DEMO_EXIT=1 it exits after the last step. The exit code is 0 if every step
// succeeded, else 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead/fairlead/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, stop, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the demo. After the first signal it calls stop, so that a second signal ends the process at once; the next
// lab then cleans up.
func run(ctx context.Context, stop func(), stdout, stderr io.Writer) int {
	s := newStory(stdout)
	l, err := lab.New(ctx, lab.Options{
		ServingNames: []string{sniCluster.hostname(domain)}, TunnelDomain: domain, Certificates: year,
	})
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return 1
	}
	defer func() {
		s.step("Stopping all parts, removing the networks and all files.")
		l.Close(context.WithoutCancel(ctx))
		s.step("Done.")
	}()
	context.AfterFunc(ctx, stop)
	if err := runSteps(ctx, l, s); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			s.step("Interrupted.")
			return 1
		}
		s.result(false, "%v", err)
		if logs, err := l.KeepLogs(); err == nil {
			_, _ = fmt.Fprintln(stderr, "demo: failed; the logs of all parts are in", logs)
		}
		return 1
	}
	if os.Getenv("DEMO_EXIT") == "1" {
		return 0
	}
	s.step("All of it keeps running until you press Ctrl-C.")
	<-ctx.Done()
	return 0
}
