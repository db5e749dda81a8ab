// Package workspace manages the resources of one lab on this machine: its folder and its logs, the programs that it
// runs (found, or built with a mistake), small disks, and the steps that remove all of it. It does not know what a lab
// consists of.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/test/lab/cgroup"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// Workspace is the folder of one lab, the programs that it runs, and the steps that end it.
type Workspace struct {
	Name  string // of the lab; unique
	Dir   string
	Parts Parts

	mu      sync.Mutex
	closers []func(context.Context) // run last to first
}

// New removes what killed labs left behind and makes the folder of a new lab. An empty programs is the default
// folder of our own programs. machines also requires the programs of a lab with machines.
func New(ctx context.Context, programs string, machines bool) (*Workspace, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	parts, err := FindParts()
	if err != nil {
		return nil, err
	}
	if machines {
		if err := parts.FindMachineParts(); err != nil {
			return nil, err
		}
	}
	if programs != "" {
		parts.Fairlead = programs
	}
	return NewWith(ctx, parts)
}

// NewWith is New with parts that the caller has found.
func NewWith(ctx context.Context, parts Parts) (*Workspace, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	if err := RemoveLeftovers(ctx); err != nil {
		return nil, err
	}
	name, err := netns.NewLabName()
	if err != nil {
		return nil, err
	}
	w := &Workspace{Name: name, Dir: filepath.Join(os.TempDir(), name), Parts: parts}
	if err := os.MkdirAll(w.logs(), 0o755); err != nil {
		return nil, fmt.Errorf("making the lab's folder: %w", err)
	}
	return w, nil
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("making network namespaces: this must run as root")
	}
	return nil
}

// RemoveLeftovers removes what labs left behind whose owner was killed: namespaces, processes, files and control
// groups.
func RemoveLeftovers(ctx context.Context) error {
	if err := netns.RemoveLeftovers(ctx); err != nil {
		return err
	}
	groups, err := cgroup.Find()
	if err != nil {
		return nil // a lab on such a machine has made none
	}
	for _, name := range groups.Names() {
		if netns.OwnerIsGone(name) {
			if err := groups.Remove(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// OnClose adds a step to Close. Steps run in reverse order.
func (w *Workspace) OnClose(step func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closers = append(w.closers, step)
}

// RunClosers runs the steps of OnClose, the last one first. It may be called more than once.
func (w *Workspace) RunClosers(ctx context.Context) {
	w.mu.Lock()
	steps := w.closers
	w.closers = nil
	w.mu.Unlock()
	for _, step := range slices.Backward(steps) {
		step(ctx)
	}
}

// KeepLogs moves the logs of all processes to a folder that Close does not remove, and returns its name.
func (w *Workspace) KeepLogs() (string, error) {
	kept, err := os.MkdirTemp("", "fairlead-logs-")
	if err != nil {
		return "", fmt.Errorf("making a folder for logs: %w", err)
	}
	if err := os.CopyFS(kept, os.DirFS(w.logs())); err != nil {
		return "", fmt.Errorf("keeping logs: %w", err)
	}
	return kept, nil
}

func (w *Workspace) logs() string { return filepath.Join(w.Dir, "logs") }

// File returns the path of a file in the lab's folder.
func (w *Workspace) File(elements ...string) string {
	return filepath.Join(append([]string{w.Dir}, elements...)...)
}

// LogFile returns the path of the file with the output of a process.
func (w *Workspace) LogFile(name string) string { return w.File("logs", name+".log") }
