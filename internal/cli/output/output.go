// Package output prints what commands show: tables with wide columns, pages of fields, JSON and YAML, and with --watch
// each of them again after a change. It knows no commands and no clusters. It removes everything from texts that could
// control a terminal.
package output

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
	FormJSON  = "json"
	formYAML  = "yaml"
)

var outputForms = []string{formTable, formWide, FormJSON, formYAML}

// The exit codes of every command, besides 0.
const (
	exitBroken = 1 // something that was checked is broken, or the command has failed
	exitUsage  = 2 // the command line is wrong
)

// UsageError returns an error of the command line: exit code 2.
func UsageError(format string, args ...any) error {
	return &command.Error{Code: exitUsage, Err: fmt.Errorf(format, args...)}
}

// Broken returns an error that ends the program with exit code 1 and prints nothing: the output contains the reason.
func Broken() error { return &command.Error{Code: exitBroken} }

// Exit returns an error that ends the program with the exit code of a command that it has run, which is not 0. It
// prints nothing: the command has.
func Exit(code int) error {
	of := new(command.Error)
	of.Code = code
	return of
}

// Options configure how a command prints.
type Options struct {
	Form  string
	Watch bool
}

// AddTo adds -o.
func (o *Options) AddTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.Form, "output", "o", formTable, "output format: table, wide (more columns), json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputForms, cobra.ShellCompDirectiveNoFileComp))
}

// AddWatchTo adds -o and --watch.
func (o *Options) AddWatchTo(cmd *cobra.Command) {
	o.AddTo(cmd)
	cmd.Flags().BoolVarP(&o.Watch, "watch", "w", false, "keep running: redraw on a terminal, append changes elsewhere")
}

// Structured reports whether the output is for machines.
func (o *Options) Structured() bool { return o.Form == FormJSON || o.Form == formYAML }

func (o *Options) wide() bool { return o.Form == formWide }

// Validate returns a usage error for an unknown form of -o.
func (o *Options) Validate() error {
	if !slices.Contains(outputForms, o.Form) {
		return UsageError("--output: %q is invalid: must be one of %s", o.Form, strings.Join(outputForms, ", "))
	}
	return nil
}

// View is the output of a command at one moment.
type View struct {
	Data    any         // for json and yaml
	Summary []Line      // above the table
	Table   *Table      // for people, or
	Page    func(*Page) // more than a table
	Empty   string      // instead of a table without rows
	Same    any         // of a Page: --watch prints it again only if this differs; nil: Data
}

// Print prints a view once.
func (o *Options) Print(cmd *cobra.Command, v View) error {
	if err := o.Validate(); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if o.Structured() {
		return o.encode(out, v.Data)
	}
	return o.draw(NewPage(out, o.wide()), v)
}

func (o *Options) draw(p *Page, v View) error {
	for _, l := range v.Summary {
		p.Line(l...)
	}
	switch {
	case v.Page != nil:
		v.Page(p)
	case v.Table != nil && len(v.Table.Rows) == 0 && v.Empty != "":
		p.Line(Plain(v.Empty))
	case v.Table != nil:
		if len(v.Summary) > 0 {
			p.Line()
		}
		p.Table(v.Table)
	}
	return p.Err
}

// encode prints data for machines. YAML documents begin with their separator, so that several can follow each other.
func (o *Options) encode(out io.Writer, data any) error {
	if o.Form == formYAML {
		text, err := yaml.Marshal(data)
		if err != nil {
			return fmt.Errorf("writing YAML: %w", err)
		}
		if o.Watch {
			text = append([]byte("---\n"), text...)
		}
		_, err = out.Write(text)
		return err
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if !o.Watch { // with --watch one line for each, as tools read it
		e.SetIndent("", "  ")
	}
	return e.Encode(data)
}

// Show prints the view that look returns. With --watch it prints the view again after each change that changes reports,
// until the context ends.
func (o *Options) Show(cmd *cobra.Command, look func(context.Context) (View, error), changes Watcher) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Watch {
		return o.follow(cmd, look, changes)
	}
	v, err := look(cmd.Context())
	if err != nil {
		return err
	}
	return o.Print(cmd, v)
}

// terminal returns the file of a stream if it is a terminal that understands escape sequences, or nil.
func terminal(stream any) *os.File {
	file, ok := stream.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return file
}

// colourful reports whether colours may be used: on a terminal, unless NO_COLOR is set (no-color.org).
func colourful(stream any) bool { return terminal(stream) != nil && os.Getenv("NO_COLOR") == "" }

// Progress is a line on a terminal that describes the current step. It is removed at the end.
type Progress struct{ to *os.File }

// NewProgress returns a Progress on the error stream. It prints nothing unless that is a terminal.
func NewProgress(cmd *cobra.Command) Progress { return Progress{terminal(cmd.ErrOrStderr())} }

// Update replaces the line.
func (p Progress) Update(format string, args ...any) {
	if p.to != nil {
		_, _ = fmt.Fprint(p.to, "\r\x1b[K"+clean(fmt.Sprintf(format, args...)))
	}
}

// Done removes the line.
func (p Progress) Done() {
	if p.to != nil {
		_, _ = fmt.Fprint(p.to, "\r\x1b[K")
	}
}
