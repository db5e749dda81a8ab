// Package clidoc keeps a program's command line and the documents consistent, and is called by a test of each program.
// It writes the reference of the commands and flags, and has the program's own parser accept every command line in the
// documents. It runs no command.
package clidoc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/internal/golden"
)

// root is the path of the repository from cmd/<program> and internal/cli, where the tests of programs run.
var root = filepath.Join("..", "..")

// Check compares docs/reference/<program>.md with a program's commands, or rewrites it with -update. It fails the test
// for each command line in a document that the program would reject. The test must run in a folder two levels below the
// root.
func Check(t *testing.T, program func() *cobra.Command) {
	t.Helper()
	name := program().Name()
	golden.CheckFile(t, filepath.Join(root, "docs", "reference", name+".md"), []byte(reference(program())))
	for _, flag := range undocumented(program(), pages(t)) {
		t.Errorf("no page of docs describes %s: describe it on the page of its audience, or remove it", flag)
	}
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range linesOf(string(text)) {
			args, whole, ok := argumentsOf(name, line)
			if !ok {
				continue
			}
			if err := parse(program(), args, whole && line.block); err != nil {
				t.Errorf("%s: `%s`: %v", strings.TrimPrefix(file, root+"/"), line.text, err)
			}
		}
	}
}

// documents returns the paths of README.md and of all documents below docs.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 10 {
		t.Fatalf("only %d documents were found", len(files))
	}
	return files
}

// parse lets a command parse its arguments. complete is false for text quoted within a sentence, which may be only a
// part of a command line.
func parse(program *cobra.Command, args []string, complete bool) error {
	program.InitDefaultHelpFlag()
	program.InitDefaultHelpCmd()
	program.InitDefaultCompletionCmd()
	cmd, rest, err := program.Find(args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return fmt.Errorf("%s has no command %s", cmd.CommandPath(), cmd.Flags().Arg(0))
	}
	if help, _ := cmd.Flags().GetBool("help"); help || !complete || cmd.Args == nil {
		return nil
	}
	return cmd.Args(cmd, cmd.Flags().Args())
}

// reference returns a Markdown description of all commands of a program.
func reference(program *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"# `%s`\n\n<!-- Written by `make update-golden` from the program's own help: change it there. -->\n",
		program.Name(),
	)
	describe(&b, program, program.Name())
	return b.String()
}

func describe(b *strings.Builder, cmd *cobra.Command, program string) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	if cmd.CommandPath() != program {
		fmt.Fprintf(b, "\n## %s\n", cmd.CommandPath())
	}
	fmt.Fprintf(b, "\n%s.\n", strings.TrimSuffix(cmd.Short, "."))
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.Trim(cmd.Long, "\n"))
	}
	if !cmd.HasSubCommands() && cmd.CommandPath() != program {
		fmt.Fprintf(b, "\nUsage: `%s`\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", outdent(cmd.Example))
	}
	describeFlags(b, cmd)
	for _, sub := range cmd.Commands() {
		describe(b, sub, program)
	}
}

func describeFlags(b *strings.Builder, cmd *cobra.Command) {
	var rows []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		flag := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			flag = "`-" + f.Shorthand + "`, " + flag
		}
		kind, says := pflag.UnquoteUsage(f)
		if kind == "" {
			kind = f.Value.Type()
		}
		standard := ""
		if !slices.Contains([]string{"", "[]", "false"}, f.DefValue) {
			standard = "`" + f.DefValue + "`"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s |\n", flag, kind, standard, cell(says)))
	})
	if len(rows) > 0 {
		b.WriteString("\n| flag | takes | default | description |\n|---|---|---|---|\n" + strings.Join(rows, ""))
	}
}

// cell escapes a text for a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

// outdent removes the indentation of examples.
func outdent(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
