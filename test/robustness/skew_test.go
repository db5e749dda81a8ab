package robustness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/test/lab"
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
	become := func(program string, args []string) error {
		return in.replaceProgram(target, service, func(spec *proc.Spec) { spec.Program, spec.Args = program, args })
	}
	calm := in.mayCrash(usual.Name)
	return func() error {
		defer calm()
		return become(usual.Program, usual.Args)
	}, become(old, known)
}

// replaceProgram starts another program as a rollout does. An edge is reloaded, which keeps its Envoy if that needs no
// other arguments. A gateway is another Pod: its Envoy ends, and its state is empty. Everything else ends at once.
func (in *installation) replaceProgram(target string, service *proc.Service, change func(*proc.Spec)) error {
	kind, _, _ := strings.Cut(target, "/")
	switch kind {
	case "gateway":
		i := slices.IndexFunc(in.lasting, func(a *lab.Agent) bool { return a.Service == service })
		service.Hold()
		defer service.Resume()
		service.Change(change)
		_ = in.lasting[i].KillEnvoy() // another step may have ended it
		entries, err := os.ReadDir(in.lasting[i].StateDir)
		errs := []error{err}
		for _, entry := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(in.lasting[i].StateDir, entry.Name())))
		}
		return errors.Join(errs...)
	case "controller", "xds-server":
		service.Change(change)
		service.Kill()
		return nil
	}
	service.Change(change)
	return unlessGone(syscall.Kill(service.Process().PID(), syscall.SIGHUP))
}

// useCommand makes another build of fairlead that of all later commands; empty: the usual one.
func (in *installation) useCommand(program string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.cli = program
}

// runCommand runs a command of ours in the management network, as Lab.Exec does, in the present version.
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
