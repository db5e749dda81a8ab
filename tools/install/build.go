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

// A source is a Go module whose programs one go build makes together: they share most of what they are compiled from.
type source struct {
	dir     string
	ldflags func(ctx context.Context) (string, error)
}

// stripped is a source whose programs are linked without symbols, and with no version.
func stripped(dir string) *source {
	return &source{dir: dir, ldflags: func(context.Context) (string, error) { return "-s -w", nil }}
}

// A program is a package of a source, and the name of the file that it becomes.
type program struct{ pkg, file string }

// waitDelay is how long a command that was asked to end may take before it is killed.
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
	if err := said.count(ctx, pinned(from.dir), packages(programs)); err != nil {
		return err
	}
	for i, batch := range batches(programs) {
		dir := filepath.Join(to, fmt.Sprint("batch-", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		args := append([]string{"build", "-v", "-trimpath", "-ldflags", ldflags, "-o", dir + "/"}, packages(batch)...)
		if _, err := goSay(ctx, pinned(from.dir), said, args...); err != nil {
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

// batches splits programs so that go build gives no two of one batch the same name.
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

// executable is the name that go build gives the program of a package: the last element of its path that is no major version.
func executable(pkg string) string {
	elements := strings.Split(pkg, "/")
	last := elements[len(elements)-1]
	if rest, ok := strings.CutPrefix(last, "v"); ok && rest != "" && strings.Trim(rest, "0123456789") == "" && len(elements) > 1 {
		return elements[len(elements)-2]
	}
	return last
}

// ownStep builds programs of Fairlead into bin, as `make build` does. go build makes only what has changed.
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
		_, err := goSay(ctx, in, said, args...)
		return err
	}}
}

// compiled counts what go build -v prints, so that a reader sees a long build advance.
type compiled struct {
	tell              report
	of                int
	compiled, fetched int
	other             []string // lines that are neither, such as errors
}

// keptLines is how much of what go build says an error quotes.
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

// goSay runs a go command, counts what it says on standard error, and returns what it printed.
func goSay(ctx context.Context, in workdir, said *compiled, args ...string) (string, error) {
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

// count finds out how many packages go build compiles at most. It downloads the modules, if it must.
func (c *compiled) count(ctx context.Context, in workdir, packages []string) error {
	out, err := goSay(ctx, in, c, append([]string{"list", "-deps"}, packages...)...)
	c.of = strings.Count(out, "\n")
	return err
}

// A workdir is where a command runs, and with which environment.
type workdir struct {
	dir string
	env []string
}

// pinned is a folder whose module is built as its go.mod and go.sum say.
func pinned(dir string) workdir {
	return workdir{dir: dir, env: []string{"CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off"}}
}

// command is a command that is interrupted when ctx ends.
func (w workdir) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = w.dir, waitDelay
	cmd.Env = append(os.Environ(), w.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

// output runs a command in dir and returns what it printed, trimmed.
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
