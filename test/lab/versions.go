package lab

import (
	"context"
	"path/filepath"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// UsePrograms has everything of ours that is started from now on come from another folder, such as that of another
// version.
func (l *Lab) UsePrograms(folder string) { l.Parts.Fairlead = folder }

// known notes the arguments of a process, and returns those that its program knows, which may be of a version that
// lacks some flags.
func (l *Lab) known(ctx context.Context, name, program string, args []string) ([]string, error) {
	l.mu.Lock()
	l.arguments[name] = args
	ours := filepath.Dir(program) == l.Parts.Fairlead && l.options.Programs == ""
	l.mu.Unlock()
	if ours {
		return args, nil // of this version, whose flags they are
	}
	return workspace.KnownArguments(ctx, program, args)
}

// Become has the service of an agent or a Pod run another build of its program, from its next start on.
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
