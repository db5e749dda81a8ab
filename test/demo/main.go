// Command demo shows, step by step and with real programs, Cluster API managing two workload clusters that it cannot
// dial. With the argument networks it shows apiservers that reach machines at sites that they cannot dial. It runs
// until Ctrl-C. With DEMO_EXIT=1 it exits after the last step. The exit code is 0 if every step succeeded, else 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead/fairlead/internal/kubelog"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// plot is what a demo shows in a lab.
type plot struct {
	lab  lab.Options
	show func(ctx context.Context, l *lab.Lab, s *story) error
}

// plots are the demos by the argument of the program.
var plots = map[string]plot{
	"": {
		lab.Options{
			ServingNames: []string{sniCluster.hostname(domain)}, TunnelDomain: domain, Certificates: year,
		},
		runSteps,
	},
	"networks": {
		lab.Options{
			TunnelDomain: domain, Lean: true, WithoutWorkload: true, Certificates: year,
			ControllerFlags: []string{"--apiserver-cidrs=" + netns.ManagementPrefix().String()},
		},
		showNetworks,
	},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	p, ok := plots[name]
	if !ok || len(os.Args) > 2 {
		fmt.Fprintln(os.Stderr, "demo: want no argument, or networks")
		os.Exit(2)
	}
	code := run(ctx, stop, p, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs a demo. After the first signal it calls stop, so that a second signal ends the process at once; the next
// lab then cleans up.
func run(ctx context.Context, stop func(), p plot, stdout, stderr io.Writer) int {
	kubelog.SetLogger(slog.New(slog.DiscardHandler)) // libraries report streams that a demo ends
	s := newStory(stdout)
	l, err := lab.New(ctx, p.lab)
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
	if err := p.show(ctx, l, s); err != nil {
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
