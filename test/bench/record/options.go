package record

import (
	"fmt"
	"io"
	"regexp"
)

// Options are the options of every suite.
type Options struct {
	Quick   bool           // fewer and shorter rounds: all suites together within ten minutes
	Only    *regexp.Regexp // names of benchmarks to run; an empty one matches all
	Against *regexp.Regexp // names of peers to compare with; an empty one matches all
	Out     io.Writer      // progress and figures for people
}

// Printf reports progress.
func (o Options) Printf(format string, args ...any) {
	_, _ = fmt.Fprintf(o.Out, format+"\n", args...)
}

// Rounds returns the number of rounds of a benchmark: full, or quick in a quick run.
func (o Options) Rounds(full, quick int) int {
	if o.Quick {
		return quick
	}
	return full
}
