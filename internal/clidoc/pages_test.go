package clidoc

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

func TestUndocumentedFindsFlagsThatNoPageDescribes(t *testing.T) {
	program := &cobra.Command{Use: "agent"}
	run := &cobra.Command{Use: "run", Run: func(*cobra.Command, []string) {}}
	run.Flags().Bool("state", false, "")
	run.Flags().Bool("state-dir", false, "")
	leave := &cobra.Command{Use: "leave", Run: run.Run}
	leave.Flags().Bool("force", false, "")
	leave.Flags().Bool("hidden", false, "")
	if err := leave.Flags().MarkHidden("hidden"); err != nil {
		t.Fatal(err)
	}
	program.AddCommand(run, leave)
	for name, tc := range map[string]struct {
		pages []string
		want  []string
	}{
		"no page": {nil, []string{"agent leave --force", "agent leave --hidden", "agent --state", "agent --state-dir"}},
		"each flag with its command": {
			[]string{"`agent leave` `--force` `--hidden`", "`agent` `--state` `--state-dir`"}, nil,
		},
		"a flag whose name begins another": {
			[]string{"`agent leave` `--force` `--hidden`", "`agent` `--state-dir=x`"}, []string{"agent --state"},
		},
		"flags on a page of another command": {
			[]string{"`agent --force --state --state-dir --hidden`"}, []string{"agent leave --force", "agent leave --hidden"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := undocumented(program, tc.pages)
			slices.Sort(got)
			slices.Sort(tc.want)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
