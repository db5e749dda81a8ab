// Package readme runs every command of the README and of the quickstart, as a newcomer would.
package readme

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of shell commands.
var block = regexp.MustCompile("(?s)```sh\n(.*?)```")

// long is a command that a short test leaves out.
const long = "make demo-networks"

func TestEveryCommandOfTheReadmeWorks(t *testing.T) {
	if os.Getenv("E2E_REQUIRED") == "" {
		t.Skip("runs the demo, as root: set E2E_REQUIRED=1")
	}
	root := filepath.Join("..", "..")
	ran := []string{"make test"} // make test runs this test
	for file, wanted := range map[string][]string{
		"README.md":          {"make demo", long, "make test"},
		"docs/quickstart.md": {"make demo"},
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		commands := commandsOf(string(text))
		for _, want := range wanted {
			if !slices.Contains(commands, want) {
				t.Errorf("%s does not name %q: it has %q", file, want, commands)
			}
		}
		for _, command := range commands {
			if slices.Contains(ran, command) {
				continue
			}
			ran = append(ran, command)
			t.Run(command, func(t *testing.T) {
				if testing.Short() && command == long {
					t.Skip("takes more than a minute")
				}
				cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", command)
				cmd.Dir = root
				cmd.Env = append(os.Environ(), "DEMO_EXIT=1") // exit after the last step instead of waiting for Ctrl-C
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// commandsOf returns the lines of all sh blocks, without comments.
func commandsOf(text string) []string {
	var commands []string
	for _, match := range block.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(match[1]) {
			line, _, _ = strings.Cut(line, " #")
			if line = strings.TrimSpace(line); line != "" {
				commands = append(commands, line)
			}
		}
	}
	return commands
}
