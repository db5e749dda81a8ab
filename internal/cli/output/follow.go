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
	// gatherTime is for how long changes are gathered before they are shown: many come together.
	gatherTime = 200 * time.Millisecond
	// redrawInterval is how often a terminal is drawn without a change: ages go on.
	redrawInterval = 5 * time.Second
)

// follow shows what look returns again and again.
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
	if terminal(cmd.OutOrStdout()) != nil && !o.structured() {
		show = o.redrawer(cmd)
		ticker := time.NewTicker(redrawInterval)
		defer ticker.Stop()
		redraw = ticker.C
	}
	for {
		v, err := look(ctx)
		switch {
		case ctx.Err() != nil: // the person has seen enough
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

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// appender prints a view, and of those after it only the rows that are new, gone or differ.
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
			if _, still := now[key]; !still && !o.structured() {
				p.Line(Plain(key + " is gone"))
			}
		}
		before = now
		if o.structured() {
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

// appendPage prints a view that is no table whenever it differs.
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
	if o.structured() {
		return o.encode(cmd.OutOrStdout(), v.Data)
	}
	return o.draw(NewPage(cmd.OutOrStdout(), o.wide()), v)
}

// signature is what a row says, without what changes by time alone.
func signature(columns []column, r row) string {
	var all []string
	for i, c := range r.cells {
		if !columns[i].live {
			all = append(all, c.Text)
		}
	}
	return strings.Join(all, "\x00")
}

// redrawer draws each view in the place of the one before, as much of it as the terminal has room for.
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

// cut is as much of a line as a terminal has columns; escape sequences take none.
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

// Watcher calls changed whenever what is shown may have changed, until its context ends. It returns before that only if it can't
// go on. changed does not block.
type Watcher func(ctx context.Context, changed func()) error

// Every says at an interval that something may have changed: for what nobody can watch.
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

// Both unites watchers.
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
