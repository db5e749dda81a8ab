// Command report sums the results of the runs of test/robustness. Input: the files of results. Output: hours, seeds,
// steps, faults, requests and violations of all runs together. With --history it checks histories that runs have kept
// by the present rules instead, and prints the violations of each. It does not know how a run works.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fairlead/fairlead/test/robustness"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if err := report(args, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "report:", err)
		return 1
	}
	return 0
}

func report(files []string, stdout io.Writer) error {
	if len(files) > 0 && files[0] == "--history" {
		return check(files[1:], stdout)
	}
	if len(files) == 0 {
		return errors.New("give the files of results, or --history and those of histories")
	}
	var all []io.Reader
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		all = append(all, file)
	}
	text, err := robustness.Report(io.MultiReader(all...))
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// check prints what the present rules say of histories. It returns an error if one breaks a rule.
func check(files []string, stdout io.Writer) error {
	broken := 0
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		history, err := robustness.ReadHistory(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all := robustness.Check(history)
		for _, v := range all {
			if !v.Void {
				broken++
			}
			if _, err := fmt.Fprintf(stdout, "%s: void=%t %s\n", name, v.Void, v); err != nil {
				return err
			}
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d violations", broken)
	}
	return nil
}
