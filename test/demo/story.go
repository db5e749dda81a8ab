package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// story prints the steps, each line with the seconds since the start. It is safe for concurrent use.
type story struct {
	start time.Time
	mu    sync.Mutex
	out   io.Writer
}

func newStory(out io.Writer) *story { return &story{out: out, start: time.Now()} }

// step prints what the demo does next.
func (s *story) step(format string, args ...any) {
	s.print(fmt.Sprintf(format, args...), "")
}

// result prints an observation, and whether it is as expected.
func (s *story) result(good bool, format string, args ...any) {
	mark := "ok    "
	if !good {
		mark = "FAIL  "
	}
	s.print(mark+fmt.Sprintf(format, args...), "")
}

// show prints a title and quotes a file or the output of a command.
func (s *story) show(title, text string) { s.print(title, text) }

func (s *story) print(line, quoted string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, "%6.1fs  %s\n", time.Since(s.start).Seconds(), line)
	for line := range strings.Lines(quoted) {
		_, _ = fmt.Fprintf(s.out, "         | %s\n", strings.TrimRight(line, "\n"))
	}
}
