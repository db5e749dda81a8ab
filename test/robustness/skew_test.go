package robustness

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/versions"
)

// buildEarliest builds the programs of the earliest version from which an upgrade is supported.
func (in *installation) buildEarliest(ctx context.Context) error {
	all := versions.Earlier()
	if len(all) == 0 {
		return errors.New("there is no earlier version")
	}
	b, err := all[0].Build(ctx)
	in.earliest = b.Programs
	return err
}

// downgrade replaces a program by its earliest version, and returns what takes it back. State that one version has
// stored is read by the other.
func (in *installation) downgrade(ctx context.Context, target string) (end func() error, err error) {
	if target == "cli" {
		in.useCommand(filepath.Join(in.earliest, "fairlead"))
		return func() error { in.useCommand(""); return nil }, nil
	}
	service, _, err := in.process(target)
	if err != nil {
		return nil, err
	}
	usual := service.Process().Spec
	old := filepath.Join(in.earliest, filepath.Base(usual.Program))
	known, err := workspace.KnownArguments(ctx, old, usual.Args)
	if err != nil {
		return nil, err
	}
	// An edge is reloaded, which keeps its Envoy if that needs no other arguments. Everything else ends at once.
	signal := syscall.SIGKILL
	if filepath.Base(usual.Program) == "edge-agent" {
		signal = syscall.SIGHUP
	}
	become := func(program string, args []string) error {
		service.Change(func(spec *proc.Spec) { spec.Program, spec.Args = program, args })
		return unlessGone(syscall.Kill(service.Process().PID(), signal))
	}
	return func() error { return become(usual.Program, usual.Args) }, become(old, known)
}

// useCommand makes another build of fairlead that of all later commands; empty: the usual one.
func (in *installation) useCommand(program string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.cli = program
}

// exec runs a command of ours in the management network, as Lab.Exec does, in the present version.
func (in *installation) runCommand(ctx context.Context, args ...string) (string, error) {
	in.mu.Lock()
	program := in.cli
	in.mu.Unlock()
	cmd, err := in.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	if program != "" {
		usual := in.Program("fairlead")
		for i, arg := range cmd.Args {
			cmd.Args[i] = strings.Replace(arg, usual, program, 1)
		}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
