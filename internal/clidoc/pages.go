package clidoc

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// inline is code within a sentence or a table.
var inline = regexp.MustCompile("`[^`\n]+`")

// undocumented returns the flags of a program that no hand-written page describes for their command, as "command
// --flag". A page describes a flag where its code names both the flag and the command. The generated reference does not
// count: it does not state an audience or a purpose.
func undocumented(program *cobra.Command, pages []string) (missing []string) {
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Name == "version" {
				return
			}
			for _, page := range pages {
				if describes(page, command(cmd), f.Name) {
					return
				}
			}
			missing = append(missing, command(cmd)+" --"+f.Name)
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(program)
	return missing
}

// command is the name of a command in a page: that of the program for the command that runs it.
func command(cmd *cobra.Command) string { return strings.TrimSuffix(cmd.CommandPath(), " run") }

// describes returns whether the code of a page names a command and a flag.
func describes(code, command, flag string) bool {
	named := func(name string) bool {
		return regexp.MustCompile(`(?:^|[^a-z0-9-])` + regexp.QuoteMeta(name) + `(?:[^a-z0-9-]|$)`).MatchString(code)
	}
	return named(command) && named("--"+flag)
}

// pages are the code of each hand-written page: all blocks, and all that is quoted in sentences and tables.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, file := range documents(t) {
		if filepath.Base(filepath.Dir(file)) == "reference" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := fence.FindAllString(string(text), -1)
		spans := inline.FindAllString(fence.ReplaceAllString(string(text), "\n"), -1)
		all = append(all, strings.Join(append(blocks, spans...), "\n"))
	}
	return all
}
