package lab

import (
	"context"
	"path/filepath"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// UsePrograms makes all programs of ours that start later come from another folder, for example of another version.
func (l *Lab) UsePrograms(folder string) { l.Parts.Fairlead = folder }

// known records the arguments of a process, and returns the ones that its program supports. A program of another
// version may lack some flags.
func (l *Lab) known(ctx context.Context, name, program string, args []string) ([]string, error) {
	l.mu.Lock()
	l.arguments[name] = args
	ours := filepath.Dir(program) == l.Parts.Fairlead && l.options.Programs == ""
	l.mu.Unlock()
	if ours {
		return args, nil // of this version, which supports all flags
	}
	return workspace.KnownArguments(ctx, program, args)
}

// Become makes the service of an agent or a Pod run another build of its program from its next start on.
func (l *Lab) Become(ctx context.Context, s *proc.Service, program string) error {
	name := s.Process().Name
	l.mu.Lock()
	args := l.arguments[name]
	l.mu.Unlock()
	known, err := workspace.KnownArguments(ctx, program, args)
	if err != nil {
		return err
	}
	s.Change(func(spec *proc.Spec) { spec.Program, spec.Args = program, known })
	return nil
}
