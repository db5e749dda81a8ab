package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report prints the progress of a step.
type report func(detail string)

// A step is one line of the plan: its title, its approximate processor time, and its function.
type step struct {
	title string
	cost  time.Duration
	own   bool // builds programs of Fairlead, which are not parts
	run   func(ctx context.Context, tell report) error
}

// A plan states where each requested part comes from, and which steps remain.
type plan struct {
	title string
	kept  []string          // parts in the cache
	found []string          // parts whose programs are on the machine, with their paths
	notes []string          // other lines for the reader
	links map[string]string // from the name in bin to the file
	steps []step
}

// newPlan searches the cache and the machine for each part, and groups the missing ones.
func newPlan(ctx context.Context, o options, wanted []part, browser browserWish) (*plan, error) {
	p := &plan{title: "every part", links: map[string]string{}}
	if len(o.names) > 0 {
		p.title = strings.Join(o.names, ", ")
	}
	chain, err := toolchain(ctx)
	if err != nil {
		return nil, err
	}
	var missing []part
	for _, one := range wanted {
		key, err := one.key(chain)
		if err != nil {
			return nil, fmt.Errorf("finding what %s is made from: %w", one.name, err)
		}
		one.kept = filepath.Join(o.cache, one.name+"-"+key)
		made, err := p.have(ctx, o, one)
		if err != nil {
			return nil, err
		}
		if !made {
			missing = append(missing, one)
		}
	}
	p.steps = partSteps(missing)
	steps, note, err := planChromium(browser)
	if err != nil {
		return nil, err
	}
	if p.steps = append(p.steps, steps...); note != "" {
		p.notes = append(p.notes, note)
	}
	if len(o.own) > 0 {
		p.steps = append(p.steps, ownStep(o.root, o.own))
	}
	return p, nil
}

// installs reports whether something is missing that is not built from this repository.
func (p *plan) installs() bool {
	return slices.ContainsFunc(p.steps, func(s step) bool { return !s.own })
}

// have reports whether a part is in the cache or on the machine. It adds the links of every part.
func (p *plan) have(ctx context.Context, o options, one part) (bool, error) {
	for _, file := range one.files {
		p.links[file] = filepath.Join(one.kept, file)
	}
	if _, err := os.Stat(one.kept); err == nil {
		p.kept = append(p.kept, one.name)
		return true, nil
	}
	places, err := one.find(ctx, o.root)
	if err != nil || places == nil {
		return false, err
	}
	for file, place := range places {
		p.links[file] = place
		if one.check.any {
			p.notes = append(p.notes, "on this machine: "+place)
		} else {
			p.found = append(p.found, place)
		}
	}
	return true, nil
}

// describe prints the plan, before anything else.
func (p *plan) describe(out io.Writer) {
	fmt.Fprintf(out, "install: %s: %s\n", p.title, p.duration())
	for _, line := range []struct {
		title string
		names []string
	}{{"in the cache", p.kept}, {"on this machine, of the pinned version", p.found}} {
		if len(line.names) > 0 {
			fmt.Fprintf(out, "  %s: %s\n", line.title, strings.Join(line.names, ", "))
		}
	}
	for i, s := range p.steps {
		fmt.Fprintf(out, "  %d. %s (%s)\n", i+1, s.title, about(s.cost))
	}
	for _, note := range p.notes {
		fmt.Fprintf(out, "  %s\n", note)
	}
}

// duration describes how long all steps take on this machine.
func (p *plan) duration() string {
	var work time.Duration
	for _, s := range p.steps {
		work += s.cost
	}
	if work == 0 {
		return "everything is there"
	}
	count := fmt.Sprintf("%d steps", len(p.steps))
	if len(p.steps) == 1 {
		count = "1 step"
	}
	return fmt.Sprintf("%s, %s on %d idle processors, plus the time of downloads", count, about(work), runtime.NumCPU())
}

// parallel is how many processors a build uses on average: its last steps, which link programs, use one each.
const parallel = 8

// about describes how long work of the given processor time takes on this machine.
func about(work time.Duration) string {
	wall := work / time.Duration(min(runtime.NumCPU(), parallel))
	switch {
	case wall < 5*time.Second:
		return "seconds"
	case wall < 55*time.Second:
		return fmt.Sprintf("about %d s", (wall+5*time.Second-1)/(5*time.Second)*5)
	}
	return fmt.Sprintf("about %d min", (wall+time.Minute-1)/time.Minute)
}

// link makes the links in bin.
func (p *plan) link(bin string) error {
	var errs []error
	for file, target := range p.links {
		errs = append(errs, setLink(target, filepath.Join(bin, file)))
	}
	return errors.Join(errs...)
}

// partSteps groups parts of one source into one step, and otherwise keeps their order.
func partSteps(missing []part) []step {
	var steps []step
	built := map[string]bool{} // modules that an earlier step has mostly compiled
	for len(missing) > 0 {
		first := missing[0]
		together := []part{first}
		if first.source != nil {
			together = slices.DeleteFunc(slices.Clone(missing), func(p part) bool { return p.source != first.source })
		}
		missing = slices.DeleteFunc(missing, func(p part) bool {
			return slices.ContainsFunc(together, func(t part) bool { return t.name == p.name })
		})
		s := step{title: "making " + titles(together), cost: cost(together, first.source != nil && built[first.source.dir])}
		if first.source != nil {
			s.title = "building " + titles(together)
			built[first.source.dir] = true
		}
		s.run = func(ctx context.Context, tell report) error { return makeParts(ctx, together, tell) }
		steps = append(steps, s)
	}
	return steps
}

// cost returns the processor time to make parts together. The largest part needs its full time, unless an earlier step
// has compiled most of it. The others add only what they do not share with it.
func cost(together []part, compiled bool) time.Duration {
	var all, largest time.Duration
	for _, p := range together {
		all += p.added
		largest = max(largest, p.alone-p.added)
	}
	if compiled {
		largest = 0
	}
	return all + largest
}

func titles(together []part) string {
	var names []string
	for _, p := range together {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}
