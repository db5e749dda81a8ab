package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A source is a Go module whose programs are made by one go build, because they share most of their packages.
type source struct {
	dir     string
	tags    string // of go build; may be empty
	ldflags func(ctx context.Context) (string, error)
	prepare func(ctx context.Context) error // writes the module; nil: it is in the repository
}

// stripped returns a source whose programs are linked without symbols and without a version.
func stripped(dir string) *source {
	return &source{dir: dir, ldflags: func(context.Context) (string, error) { return "-s -w", nil }}
}

// workdir returns the folder in which go commands build the source. They complete the go.sum of a module that prepare
// has written, after a check with Go's checksum database.
func (s *source) workdir() workdir {
	w := pinned(s.dir)
	if s.prepare != nil {
		w.env = append(w.env, "GOFLAGS=-mod=mod -buildvcs=false")
	}
	return w
}

// A program is a package of a source, and the name of its executable file.
type program struct{ pkg, file string }

// waitDelay is how long an interrupted command may take before it is killed.
const waitDelay = 5 * time.Second

// makeParts makes parts of one source, or one part without a source, and puts them into the cache.
func makeParts(ctx context.Context, together []part, tell report) error {
	work, err := os.MkdirTemp(filepath.Dir(together[0].kept), "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	folders := map[string]string{} // from the file of a program to the folder of its part
	var programs []program
	for _, p := range together {
		dir := filepath.Join(work, "part-"+p.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for _, one := range p.programs {
			folders[one.file] = dir
			programs = append(programs, one)
		}
	}
	if err := buildAll(ctx, together[0].source, programs, work, tell); err != nil {
		return err
	}
	for file, dir := range folders {
		if err := os.Rename(filepath.Join(work, file), filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	for _, p := range together {
		dir := filepath.Join(work, "part-"+p.name)
		if p.make != nil {
			if err := p.make(ctx, dir); err != nil {
				return fmt.Errorf("making %s: %w", p.name, err)
			}
		}
		if err := keep(dir, p.kept); err != nil {
			return err
		}
	}
	return nil
}

// buildAll builds programs into a folder, under the names of their files.
func buildAll(ctx context.Context, from *source, programs []program, to string, tell report) error {
	if len(programs) == 0 {
		return nil
	}
	if from.prepare != nil {
		if err := from.prepare(ctx); err != nil {
			return err
		}
	}
	ldflags, err := from.ldflags(ctx)
	if err != nil {
		return err
	}
	packages := func(some []program) (all []string) {
		for _, p := range some {
			all = append(all, p.pkg)
		}
		return all
	}
	said := &compiled{tell: tell}
	if err := said.count(ctx, from.workdir(), packages(programs)); err != nil {
		return err
	}
	for i, batch := range batches(programs) {
		dir := filepath.Join(to, fmt.Sprint("batch-", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		args := append(
			[]string{"build", "-v", "-trimpath", "-tags", from.tags, "-ldflags", ldflags, "-o", dir + "/"}, packages(batch)...,
		)
		if _, err := runGo(ctx, from.workdir(), said, args...); err != nil {
			return err
		}
		for _, p := range batch {
			if err := os.Rename(filepath.Join(dir, executable(p.pkg)), filepath.Join(to, p.file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// batches splits programs so that go build gives different names to all programs of a batch.
func batches(programs []program) [][]program {
	var all [][]program
	for _, p := range programs {
		i := slices.IndexFunc(all, func(batch []program) bool {
			return !slices.ContainsFunc(batch, func(other program) bool { return executable(other.pkg) == executable(p.pkg) })
		})
		if i < 0 {
			i, all = len(all), append(all, nil)
		}
		all[i] = append(all[i], p)
	}
	return all
}

// executable returns the name that go build gives the program of a package: the last element of its path that is not a
// major version.
func executable(pkg string) string {
	elements := strings.Split(pkg, "/")
	last := elements[len(elements)-1]
	if rest, ok := strings.CutPrefix(last, "v"); ok && rest != "" && strings.Trim(rest, "0123456789") == "" &&
		len(elements) > 1 {
		return elements[len(elements)-2]
	}
	return last
}

// ownStep builds programs of Fairlead into bin, as `make build` does. go build rebuilds only what has changed.
func ownStep(root string, packages []string) step {
	cost := ownCost
	there := !slices.ContainsFunc(packages, func(pkg string) bool {
		_, err := os.Stat(filepath.Join(root, "bin", executable(pkg)))
		return err != nil
	})
	title := "building Fairlead's " + fmt.Sprint(len(packages)) + " programs"
	if there {
		cost, title = ownAgain, "building what has changed of Fairlead's "+fmt.Sprint(len(packages))+" programs"
	}
	return step{title: title, cost: cost, own: true, run: func(ctx context.Context, tell report) error {
		said, in := &compiled{tell: tell}, workdir{dir: root}
		if err := said.count(ctx, in, packages); err != nil {
			return err
		}
		args := append([]string{"build", "-v", "-ldflags=-w", "-o", filepath.Join(root, "bin") + "/"}, packages...)
		_, err := runGo(ctx, in, said, args...)
		return err
	}}
}

// compiled counts the packages that go build -v prints, to show the progress of a long build.
type compiled struct {
	tell              report
	of                int
	compiled, fetched int
	other             []string // other lines, such as errors
}

// keptLines is how many lines of go build's output an error quotes.
const keptLines = 40

func (c *compiled) line(line string) {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		c.fetched++
		c.tell(fmt.Sprintf("%d modules downloaded", c.fetched))
	case line == "" || strings.ContainsAny(line, " :\t"):
		if c.other = append(c.other, line); len(c.other) > keptLines {
			c.other = c.other[1:]
		}
	default:
		c.compiled++
		c.tell(fmt.Sprintf("%d of at most %d packages compiled", min(c.compiled, c.of), c.of))
	}
}

// runGo runs a go command, counts the packages that it prints on standard error, and returns its standard output.
func runGo(ctx context.Context, in workdir, said *compiled, args ...string) (string, error) {
	cmd := in.command(ctx, "go", args...)
	var stdout strings.Builder
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewReader(stderr)
	for err == nil {
		var line string
		if line, err = lines.ReadString('\n'); line != "" {
			said.line(strings.TrimRight(line, "\n"))
		}
	}
	if waited := cmd.Wait(); waited != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], waited, strings.Join(said.other, "\n"))
	}
	if !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading what go %s says: %w", args[0], err)
	}
	return stdout.String(), nil
}

// count sets the largest number of packages that go build may compile. It downloads missing modules.
func (c *compiled) count(ctx context.Context, in workdir, packages []string) error {
	out, err := runGo(ctx, in, c, append([]string{"list", "-deps"}, packages...)...)
	c.of = strings.Count(out, "\n")
	return err
}

// A workdir is the folder and the environment of a command.
type workdir struct {
	dir string
	env []string
}

// pinned returns a folder whose module is built exactly as its go.mod and go.sum specify.
func pinned(dir string) workdir {
	return workdir{
		dir: dir,
		env: []string{"CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off"},
	}
}

// command returns a command that is interrupted when ctx ends.
func (w workdir) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = w.dir, waitDelay
	cmd.Env = append(os.Environ(), w.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

// output runs a command in dir and returns its output, trimmed.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := pinned(dir).command(ctx, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
