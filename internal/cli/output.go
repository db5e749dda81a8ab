package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/command"
)

// The forms of -o.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formYAML  = "yaml"
)

var outputForms = []string{formTable, formWide, formJSON, formYAML}

// The exit codes of every command, beside 0.
const (
	exitBroken = 1 // what was looked at is broken, or the command has failed
	exitUsage  = 2 // the command line is wrong
)

// usage is an error of the command line: exit code 2.
func usage(format string, args ...any) error {
	return &command.Error{Code: exitUsage, Err: fmt.Errorf(format, args...)}
}

// broken ends the program with exit code 1 without a word: what was printed says it.
func broken() error { return &command.Error{Code: exitBroken} }

// output is how a command prints what it has to show.
type output struct {
	form  string
	watch bool
}

// addTo adds -o.
func (o *output) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.form, "output", "o", formTable, "how to print: table, wide (more columns), json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputForms, cobra.ShellCompDirectiveNoFileComp))
}

// addWatchTo adds -o and --watch.
func (o *output) addWatchTo(cmd *cobra.Command) {
	o.addTo(cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "go on: draw anew on a terminal what changes, print it elsewhere")
}

// structured says whether the output is for machines.
func (o *output) structured() bool { return o.form == formJSON || o.form == formYAML }

func (o *output) wide() bool { return o.form == formWide }

func (o *output) validate() error {
	if !slices.Contains(outputForms, o.form) {
		return usage("--output: %q is none of %s", o.form, strings.Join(outputForms, ", "))
	}
	return nil
}

// view is what a command shows at one moment.
type view struct {
	Data    any         // for json and yaml
	Summary []line      // above the table
	Table   *table      // what people read, or
	Page    func(*page) // more than a table
	Empty   string      // instead of a table without rows
	Same    any         // of a Page: with --watch it is printed again only when this differs; nil: Data
}

// print prints a view once.
func (o *output) print(cmd *cobra.Command, v view) error {
	if err := o.validate(); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if o.structured() {
		return o.encode(out, v.Data)
	}
	return o.draw(newPage(out, o.wide()), v)
}

func (o *output) draw(p *page, v view) error {
	for _, l := range v.Summary {
		p.line(l...)
	}
	switch {
	case v.Page != nil:
		v.Page(p)
	case v.Table != nil && len(v.Table.rows) == 0 && v.Empty != "":
		p.line(plain(v.Empty))
	case v.Table != nil:
		if len(v.Summary) > 0 {
			p.line()
		}
		p.table(v.Table)
	}
	return p.err
}

// encode prints data for machines; of YAML each document begins with its mark, so that several can follow each other.
func (o *output) encode(out io.Writer, data any) error {
	if o.form == formYAML {
		text, err := yaml.Marshal(data)
		if err != nil {
			return fmt.Errorf("writing YAML: %w", err)
		}
		if o.watch {
			text = append([]byte("---\n"), text...)
		}
		_, err = out.Write(text)
		return err
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if !o.watch { // else one line for each, as tools read it
		e.SetIndent("", "  ")
	}
	return e.Encode(data)
}

// show prints what look returns, and with --watch again whenever changes says that something has changed, until the context ends.
func (o *output) show(cmd *cobra.Command, look func(context.Context) (view, error), changes watcher) error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.watch {
		return o.follow(cmd, look, changes)
	}
	v, err := look(cmd.Context())
	if err != nil {
		return err
	}
	return o.print(cmd, v)
}

// terminal is the file behind a stream if that is a terminal which understands escape sequences, else nil.
func terminal(stream any) *os.File {
	file, ok := stream.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return file
}

// colourful says whether colours may be used: on a terminal, and if nobody has said no (no-color.org).
func colourful(stream any) bool { return terminal(stream) != nil && os.Getenv("NO_COLOR") == "" }

// progress is a line on a terminal that says what is being done, and is gone in the end.
type progress struct{ to *os.File }

// newProgress returns one on the error stream. Where that is no terminal nothing is ever said.
func newProgress(cmd *cobra.Command) progress { return progress{terminal(cmd.ErrOrStderr())} }

// say replaces the line.
func (p progress) say(format string, args ...any) {
	if p.to != nil {
		_, _ = fmt.Fprint(p.to, "\r\x1b[K"+clean(fmt.Sprintf(format, args...)))
	}
}

// done takes the line away.
func (p progress) done() {
	if p.to != nil {
		_, _ = fmt.Fprint(p.to, "\r\x1b[K")
	}
}
