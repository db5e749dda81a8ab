// Package clock gives programs a wrong clock. It builds the programs of this repository with another time.Now, and a
// library for Envoy. Output: program paths and environments.
package clock

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/test/lab/workspace"
)

// skewEnv is the environment variable with the error of a program's clock in seconds. Go programs that Clocks built
// and programs with the library read it.
const skewEnv = "FAIRLEAD_LAB_CLOCK_SKEW"

// Clocks gives programs wrong clocks. A kernel has one clock, so the programs are changed: Go programs are built with
// another time.Now, and Envoy gets a library between it and the C library.
type Clocks struct {
	programs string
	library  string
}

//go:embed skew/skew.go.txt
var skewSource []byte

//go:embed skew/skew.c
var skewLibrary []byte

// NewClocks builds our programs with another time.Now, and the library. With an empty build cache it takes some
// minutes.
func NewClocks(ctx context.Context) (*Clocks, error) {
	root, err := workspace.FindRoot()
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(root, "bin", "clock")
	c := &Clocks{programs: programs, library: filepath.Join(programs, "skew.so")}
	if err := os.MkdirAll(c.programs, 0o755); err != nil {
		return nil, fmt.Errorf("making folder for programs with wrong clocks: %w", err)
	}
	overlay, err := c.writeOverlay(ctx)
	if err != nil {
		return nil, err
	}
	build := []string{"go", "build", "-overlay", overlay, "-o", c.programs + "/"}
	for _, name := range []string{"controller", "xds-server", "gateway-agent", "edge-agent"} {
		build = append(build, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "nice", build...) // the build may take minutes
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building programs with wrong clocks: %w\n%s", err, out)
	}
	source := filepath.Join(c.programs, "skew.c")
	if err := os.WriteFile(source, skewLibrary, 0o644); err != nil {
		return nil, fmt.Errorf("writing the library of wrong clocks: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", c.library, source,
		"-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the library of wrong clocks: %w\n%s", err, out)
	}
	return c, nil
}

// writeOverlay writes the argument of go build -overlay: the standard library's time.Now with an addition, and its
// source. It fails if time.Now has changed.
func (c *Clocks) writeOverlay(ctx context.Context) (string, error) {
	const now, skewed = "\tsec, nsec, mono := runtimeNow()\n", "\tsec, nsec, mono := runtimeNow()\n\tsec += labSkew\n"
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("asking go where it is: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	data, err := os.ReadFile(original)
	if err != nil {
		return "", fmt.Errorf("reading package time: %w", err)
	}
	head, body, ok := strings.Cut(string(data), "\nfunc Now() Time {\n"+now)
	if !ok {
		return "", fmt.Errorf("changing %s: time.Now does not begin as it did", original)
	}
	changed, added, overlay := filepath.Join(c.programs, "time.go.txt"), filepath.Join(c.programs,
		"skew.go.txt"), filepath.Join(c.programs, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		original: changed, filepath.Join(filepath.Dir(original), "lab_skew.go"): added,
	}})
	if err != nil {
		return "", fmt.Errorf("writing overlay: %w", err)
	}
	for file, content := range map[string][]byte{
		changed: []byte(head + "\nfunc Now() Time {\n" + skewed + body),
		added:   skewSource, overlay: replace,
	} {
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return "", fmt.Errorf("writing overlay: %w", err)
		}
	}
	return overlay, nil
}

// Program returns the path of one of our programs with another time.Now.
func (c *Clocks) Program(name string) string { return filepath.Join(c.programs, name) }

// Env returns the environment that makes the clock of a program, and of the Envoy that it starts, wrong.
func (c *Clocks) Env(by time.Duration) []string {
	return []string{skewEnv + "=" + strconv.Itoa(int(by.Seconds())), "LD_PRELOAD=" + c.library}
}
