package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// UsePrograms has everything of ours that is started from now on come from another folder, such as that of another version.
func (l *Lab) UsePrograms(folder string) { l.parts.Fairlead = folder }

// known notes the arguments of a process, and returns those that its program knows, which may be of a version that lacks some flags.
func (l *Lab) known(ctx context.Context, name, program string, args []string) ([]string, error) {
	l.mu.Lock()
	l.arguments[name] = args
	ours := filepath.Dir(program) == l.parts.Fairlead && l.options.Programs == ""
	l.mu.Unlock()
	if ours {
		return args, nil // of this version, whose flags they are
	}
	return KnownArguments(ctx, program, args)
}

// KnownArguments are those of some arguments that a program of ours knows, whatever version it is of.
func KnownArguments(ctx context.Context, program string, args []string) ([]string, error) {
	help := []string{"--help"}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		help = []string{args[0], "--help"}
	}
	out, err := exec.CommandContext(ctx, program, help...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("asking %s for its flags: %w: %s", program, err, out)
	}
	flags := map[string]bool{}
	for field := range strings.FieldsSeq(string(out)) {
		flags[field] = true
	}
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		flag, _, _ := strings.Cut(arg, "=")
		return strings.HasPrefix(flag, "--") && !flags[flag]
	}), nil
}

// Become has the service of an agent or a Pod run another build of its program, from its next start on.
func (l *Lab) Become(ctx context.Context, s *Service, program string) error {
	name := s.Process().Name
	l.mu.Lock()
	args := l.arguments[name]
	l.mu.Unlock()
	known, err := KnownArguments(ctx, program, args)
	if err != nil {
		return err
	}
	s.Change(func(spec *Spec) { spec.Program, spec.Args = program, known })
	return nil
}
