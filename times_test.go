package fairlead_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// timed is a Makefile whose target test runs parts in parallel, like the repository's Makefile.
const timed = `include TIMES/times.mk
.PHONY: test parts slow fails twice
test:
	@TIMES_WITHOUT=parts TIMES/run $(MAKE) --no-print-directory parts
parts:
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target $(PARTS)
slow:
	@sleep 1.2; [[ -n "$(shell echo set)" ]] # bash, and a function of make
fails:
	@false | true
	@echo not reached
twice:
	@sleep 1.6
	@sleep 1.6
`

func TestMakeReportsTheTimeOfEachPart(t *testing.T) {
	folder, err := filepath.Abs("tools/times")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "Makefile")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(timed, "TIMES/", folder+"/")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		parts  string
		fails  bool
		want   []string // patterns, in this order
		absent string
	}{
		"all parts pass": {
			parts: "slow twice",
			want: []string{
				` [2-9]  twice\n`, ` [1-9]  slow\n`, ` ([3-9]|1\d)  sum of all parts\n`,
				` \d+  from start to end\n`,
			},
			absent: "FAILED|failed|parts\n.* parts",
		},
		"a part fails in the middle of a pipe": {
			parts: "slow fails", fails: true,
			want:   []string{` [1-9]  slow\n`, ` \d  fails  FAILED\n`, `sum of all parts`, `(?m)^failed: fails$`},
			absent: `not reached|slow  FAILED`,
		},
		"a part that there is not": {
			parts: "nothing", fails: true,
			want: []string{` 0  sum of all parts`, `(?m)^failed: no part, but the command$`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "make", "test", "PARTS="+c.parts)
			cmd.Dir = filepath.Dir(file)
			cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "FAIRLEAD_TIMES=")
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails {
				t.Fatalf("make ends with %v\n%s", err, out)
			}
			rest := out
			for _, pattern := range c.want {
				at := regexp.MustCompile(pattern).FindIndex(rest)
				if at == nil {
					t.Fatalf("%q is missing or out of order:\n%s", pattern, out)
				}
				rest = rest[at[1]:]
			}
			if c.absent != "" && regexp.MustCompile(c.absent).Match(out) {
				t.Errorf("the output has %q:\n%s", c.absent, out)
			}
		})
	}
}
