// Command report sums the results of the runs of test/robustness. Input: the files of results. Output: hours, seeds,
// steps, faults, requests and violations of all runs together. It does not know how a run works.
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
	if len(files) == 0 {
		return errors.New("give the files of results")
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
