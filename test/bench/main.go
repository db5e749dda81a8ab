// Command bench measures Fairlead and comparable projects with real Envoys on this machine.
//
//	go run ./test/bench path|manager|networks|scale|all|day [--quick] [--only PATTERN] [--results DIR]
//	go run ./test/bench report [--results DIR] [--document FILE]
//	go run ./test/bench goals [--results DIR]
//
// Each suite writes its results into its own file. report makes tables and plots of all of them. goals compares them
// with the goals and exits with 1 if one is not measured, or missed without a recorded cause.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/kubelog"
	"github.com/fairlead/fairlead/test/bench/fleet"
	"github.com/fairlead/fairlead/test/bench/goals"
	"github.com/fairlead/fairlead/test/bench/manager"
	"github.com/fairlead/fairlead/test/bench/networks"
	"github.com/fairlead/fairlead/test/bench/path"
	"github.com/fairlead/fairlead/test/bench/record"
	"github.com/fairlead/fairlead/test/bench/report"
	"github.com/fairlead/fairlead/test/bench/scale"
)

// suite is a subcommand that measures.
type suite struct {
	name, short string
	run         func(ctx context.Context, log *record.Log, options record.Options) error
}

// suites are in the order of "all".
var suites = []suite{
	{"path", "the way of the data: throughput, latency, slow networks, stalled readers, beside peers", path.Run},
	{"manager", "Cluster API's manager over tunnels and over direct connections: connecting, probes, memory", manager.Run},
	{
		"networks",
		"a kube-apiserver's way to a remote network: logs, port-forward, exec, stalled readers, a killed edge",
		networks.Run,
	},
	{
		"scale",
		"the number of workload clusters: memory, CPU and bytes of each component, changes, restarts, storms",
		scale.Run,
	},
}

// forward needs as much time as scale, and answers one question.
var forward = suite{
	"forward",
	"two of six gateways have the tunnels of an edge: their number, the additional hop, killed gateways",
	scale.RunForward,
}

// day takes longer than all others together, so it is not in "all".
var day = suite{
	"day",
	"24 simulated hours while workload clusters come and go and leaves are renewed; fails if memory, goroutines or open " +
		"files grow",
	scale.RunDay,
}

func main() {
	kubelog.SetLogger(slog.New(slog.DiscardHandler)) // without a logger controller-runtime prints a warning
	command.Main(func(ctx context.Context, args []string, stdout, stderr io.Writer) int {
		return command.Run(ctx, root(), args, stdout, stderr)
	})
}

func root() *cobra.Command {
	root := &cobra.Command{Use: "bench", Short: "measure Fairlead and its peers"}
	results := root.PersistentFlags().String("results", filepath.Join("test", "bench", "results"), "folder of the results")
	for _, s := range suites {
		root.AddCommand(measure(s.name, s.short, results, s))
	}
	root.AddCommand(measure(forward.name, forward.short, results, forward))
	root.AddCommand(measure(day.name, day.short, results, day))
	root.AddCommand(measure("all", "everything", results, suites...), write(results), compare(results), serve(), edges())
	return root
}

func measure(name, short string, results *string, suites ...suite) *cobra.Command {
	c := &cobra.Command{Use: name, Short: "measure " + short, Args: cobra.NoArgs}
	quick := c.Flags().Bool("quick", false, "fewer and shorter rounds")
	only := c.Flags().String("only", "", "regular expression of the names of the benchmarks to run")
	against := c.Flags().String("against", "", "regular expression of the peers to compare with, \"-\" for none")
	c.RunE = func(c *cobra.Command, _ []string) error {
		options := record.Options{Quick: *quick, Out: c.OutOrStdout()}
		var err error
		if options.Only, err = regexp.Compile(*only); err != nil {
			return err
		}
		if *against == "-" {
			*against = "^-$" // some names contain it
		}
		if options.Against, err = regexp.Compile(*against); err != nil {
			return err
		}
		// If one suite fails, the others still run.
		var failed error
		for _, s := range suites {
			failed = errors.Join(failed, s.measure(c.Context(), *results, options))
		}
		return failed
	}
	return c
}

func (s suite) measure(ctx context.Context, results string, options record.Options) error {
	log, err := record.New(results, s.name)
	if err != nil {
		return err
	}
	if err := errors.Join(s.run(ctx, log, options), log.Close()); err != nil {
		return fmt.Errorf("measuring %s: %w", s.name, err)
	}
	return nil
}

func write(results *string) *cobra.Command {
	c := &cobra.Command{Use: "report", Short: "write tables and plots of the results", Args: cobra.NoArgs}
	document := c.Flags().String("document", filepath.Join("docs", "benchmarks.md"),
		"file whose tables are rewritten, with the files and plots in the folder of its name beside it")
	c.RunE = func(*cobra.Command, []string) error { return report.Write(*results, *document) }
	return c
}

func compare(results *string) *cobra.Command {
	c := &cobra.Command{Use: "goals", Short: "compare the results with the goals", Args: cobra.NoArgs}
	c.RunE = func(c *cobra.Command, _ []string) error {
		all, err := goals.Load(*results)
		if err != nil {
			return err
		}
		causes, err := goals.Causes()
		if err != nil {
			return err
		}
		rows := goals.Evaluate(goals.All, all, causes)
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s\nruns: %s\n", goals.Text(rows), strings.Join(goals.Runs(rows, all), ", "))
		if failed := goals.Failed(rows); err == nil && len(failed) > 0 {
			err = fmt.Errorf("missed without a recorded cause, or not measured: %s", strings.Join(failed, ", "))
		}
		return err
	}
	return c
}

// serve returns the command that runs the apiserver of the suite path as a separate process.
func serve() *cobra.Command {
	return &cobra.Command{
		Use:    "serve DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return path.Serve(c.Context(), args[0])
		},
	}
}

// edges returns the command that runs some edges of the suite forward as a separate process.
func edges() *cobra.Command {
	return &cobra.Command{
		Use:    fleet.ServeCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return fleet.Serve(c.Context(), os.Stdin, os.Stdout) },
	}
}
