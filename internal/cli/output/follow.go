package output

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const (
	// gatherTime is how long changes are collected before they are shown. Many changes come together.
	gatherTime = 200 * time.Millisecond
	// redrawInterval is how often a terminal is redrawn without a change, because ages advance.
	redrawInterval = 5 * time.Second
)

// follow shows the view that look returns, again after each change.
func (o *Options) follow(cmd *cobra.Command, look func(context.Context) (View, error), changes Watcher) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	news, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- changes(ctx, func() {
			select {
			case news <- struct{}{}:
			default:
			}
		})
	}()
	show := o.appender(cmd)
	var redraw <-chan time.Time
	if terminal(cmd.OutOrStdout()) != nil && !o.Structured() {
		show = o.redrawer(cmd)
		ticker := time.NewTicker(redrawInterval)
		defer ticker.Stop()
		redraw = ticker.C
	}
	for {
		v, err := look(ctx)
		switch {
		case ctx.Err() != nil: // the user has interrupted the command
			return nil
		case err != nil:
			return err
		}
		if err := show(v); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(errors.New("the watch has ended"), err)
		case <-news:
			wait(ctx, gatherTime)
		case <-redraw:
		}
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// appender prints a view, and of later views only the rows that are new, removed or changed.
func (o *Options) appender(cmd *cobra.Command) func(View) error {
	var before map[string]string
	var lastPage string
	return func(v View) error {
		out := cmd.OutOrStdout()
		if v.Table == nil {
			return o.appendPage(cmd, v, &lastPage)
		}
		p, now, changed := NewPage(out, o.wide()), map[string]string{}, &Table{Columns: v.Table.Columns}
		for _, r := range v.Table.Rows {
			now[r.key] = signature(v.Table.Columns, r)
			if before == nil || before[r.key] != now[r.key] {
				changed.Rows = append(changed.Rows, r)
			}
		}
		first := before == nil
		for key := range before {
			if _, still := now[key]; !still && !o.Structured() {
				p.Line(Plain(key + " is gone"))
			}
		}
		before = now
		if o.Structured() {
			for _, r := range changed.Rows {
				if err := o.encode(out, r.data); err != nil {
					return err
				}
			}
			return nil
		}
		if first {
			return o.draw(p, v)
		}
		p.rows(v.Table, changed.Rows)
		return p.Err
	}
}

// appendPage prints a view that is not a table whenever it differs from the last one.
func (o *Options) appendPage(cmd *cobra.Command, v View, last *string) error {
	same := v.Same
	if same == nil {
		same = v.Data
	}
	now, err := json.Marshal(same)
	if err != nil || string(now) == *last {
		return err
	}
	*last = string(now)
	if o.Structured() {
		return o.encode(cmd.OutOrStdout(), v.Data)
	}
	return o.draw(NewPage(cmd.OutOrStdout(), o.wide()), v)
}

// signature returns the content of a row without the columns that change by time alone.
func signature(columns []column, r row) string {
	var all []string
	for i, c := range r.cells {
		if !columns[i].live {
			all = append(all, c.Text)
		}
	}
	return strings.Join(all, "\x00")
}

// redrawer draws each view in place of the previous one, cut to the size of the terminal.
func (o *Options) redrawer(cmd *cobra.Command) func(View) error {
	file := terminal(cmd.OutOrStdout())
	start := "\x1b[2J"
	return func(v View) error {
		var b bytes.Buffer
		p := NewPage(&b, o.wide())
		p.colours = colourful(file)
		if err := o.draw(p, v); err != nil {
			return err
		}
		columns, rows, err := term.GetSize(int(file.Fd()))
		if err != nil {
			columns, rows = 80, 24
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) >= rows {
			hidden := len(lines) - rows + 2
			lines = append(lines[:max(len(lines)-hidden, 0)], fmt.Sprintf("… %d more lines", hidden))
		}
		for i := range lines {
			lines[i] = cut(lines[i], columns)
		}
		_, err = file.WriteString(start + "\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\n\x1b[J")
		start = ""
		return err
	}
}

// cut returns as much of a line as fits into the columns of a terminal. Escape sequences need no columns.
func cut(line string, columns int) string {
	taken, escape := 0, false
	for i, r := range line {
		switch {
		case escape:
			escape = r != 'm'
		case r == '\x1b':
			escape = true
		default:
			if taken++; taken > columns {
				return line[:i] + "\x1b[0m"
			}
		}
	}
	return line
}

// Watcher calls changed whenever the view may have changed, until its context ends. It returns earlier only with an
// error. changed does not block.
type Watcher func(ctx context.Context, changed func()) error

// Every returns a Watcher that reports a change at each interval, for data that cannot be watched.
func Every(interval time.Duration) Watcher {
	return func(ctx context.Context, changed func()) error {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
				changed()
			}
		}
	}
}

// Both returns a Watcher that combines several.
func Both(all ...Watcher) Watcher {
	return func(ctx context.Context, changed func()) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, len(all))
		for _, w := range all {
			go func() { ended <- w(ctx, changed) }()
		}
		var first error
		for range all {
			if err := <-ended; err != nil && first == nil {
				first = err
				cancel()
			}
		}
		return first
	}
}
