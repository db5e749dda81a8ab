package cli

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
func (o *output) follow(cmd *cobra.Command, look func(context.Context) (view, error), changes watcher) error {
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
func (o *output) appender(cmd *cobra.Command) func(view) error {
	var before map[string]string
	var lastPage string
	return func(v view) error {
		out := cmd.OutOrStdout()
		if v.Table == nil {
			return o.appendPage(cmd, v, &lastPage)
		}
		p, now, changed := newPage(out, o.wide()), map[string]string{}, &table{columns: v.Table.columns}
		for _, r := range v.Table.rows {
			now[r.key] = signature(v.Table.columns, r)
			if before == nil || before[r.key] != now[r.key] {
				changed.rows = append(changed.rows, r)
			}
		}
		first := before == nil
		for key := range before {
			if _, still := now[key]; !still && !o.structured() {
				p.line(plain(key + " is gone"))
			}
		}
		before = now
		if o.structured() {
			for _, r := range changed.rows {
				if err := o.encode(out, r.data); err != nil {
					return err
				}
			}
			return nil
		}
		if first {
			return o.draw(p, v)
		}
		p.rows(v.Table, changed.rows)
		return p.err
	}
}

// appendPage prints a view that is no table whenever it differs.
func (o *output) appendPage(cmd *cobra.Command, v view, last *string) error {
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
	return o.draw(newPage(cmd.OutOrStdout(), o.wide()), v)
}

// signature is what a row says, without what changes by time alone.
func signature(columns []column, r row) string {
	var all []string
	for i, c := range r.cells {
		if !columns[i].live {
			all = append(all, c.text)
		}
	}
	return strings.Join(all, "\x00")
}

// redrawer draws each view in the place of the one before, as much of it as the terminal has room for.
func (o *output) redrawer(cmd *cobra.Command) func(view) error {
	file := terminal(cmd.OutOrStdout())
	start := "\x1b[2J"
	return func(v view) error {
		var b bytes.Buffer
		p := newPage(&b, o.wide())
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
