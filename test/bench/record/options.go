package record

import (
	"fmt"
	"io"
	"regexp"
)

// Options are what every suite is run with.
type Options struct {
	Quick   bool           // fewer and shorter rounds: all suites together within ten minutes
	Only    *regexp.Regexp // names of benchmarks to run; an empty one matches all
	Against *regexp.Regexp // names of peers to compare with; an empty one matches all
	Out     io.Writer      // for people: progress and figures
}

// Printf tells people about progress.
func (o Options) Printf(format string, args ...any) {
	_, _ = fmt.Fprintf(o.Out, format+"\n", args...)
}

// Rounds is how many rounds a benchmark has: the first number, or the second if the run is quick.
func (o Options) Rounds(full, quick int) int {
	if o.Quick {
		return quick
	}
	return full
}
