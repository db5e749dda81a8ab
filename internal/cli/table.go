package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// mood is how a text looks where there are colours.
type mood int

const (
	moodPlain mood = iota
	moodGood
	moodWarning
	moodBad
	moodFaint
	moodBold
)

// sequences are the escape sequences of moods.
var sequences = map[mood]string{moodGood: "\x1b[32m", moodWarning: "\x1b[33m", moodBad: "\x1b[31m", moodFaint: "\x1b[2m", moodBold: "\x1b[1m"}

// cell is a text with a mood.
type cell struct {
	text string
	mood mood
}

func plain(text string) cell      { return cell{text, moodPlain} }
func in(m mood, text string) cell { return cell{text, m} }

// line is some texts one after the other.
type line []cell

// column is one of a table.
type column struct {
	name string
	wide bool // shown with -o wide only
	live bool // changes by time alone, as ages do: --watch prints no row for it
}

// columns are named ones. A name with + is for -o wide, one with ~ changes by time alone.
func columns(names ...string) []column {
	var all []column
	for _, name := range names {
		all = append(all, column{strings.TrimRight(name, "+~"), strings.Contains(name, "+"), strings.Contains(name, "~")})
	}
	return all
}

// table is what people read. Each row has a cell for each column; its key tells it from the others.
type table struct {
	columns []column
	rows    []row
}

type row struct {
	key   string
	cells []cell
	data  any // for json and yaml with --watch, where rows come one by one
}

func (t *table) add(key string, data any, cells ...cell) {
	t.rows = append(t.rows, row{key, cells, data})
}

// page is where a view is written. It remembers the first error, so that nobody has to look at each.
type page struct {
	out     io.Writer
	wide    bool
	colours bool
	err     error
}

func newPage(out io.Writer, wide bool) *page {
	return &page{out: out, wide: wide, colours: colourful(out)}
}

func (p *page) write(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.out, s)
	}
}

// paint is a text in its mood, without anything that could steer a terminal: edges say of themselves what they like.
func (p *page) paint(c cell) string {
	text := clean(c.text)
	if start, ok := sequences[c.mood]; ok && p.colours && text != "" {
		return start + text + "\x1b[0m"
	}
	return text
}

// line writes some cells and ends the line.
func (p *page) line(cells ...cell) {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString(p.paint(c))
	}
	p.write(b.String() + "\n")
}

// heading begins a section.
func (p *page) heading(text string) { p.line(); p.line(cell{text, moodBold}) }

// field writes a name and its value, aligned with others. Further lines of the value are below the first.
func (p *page) field(name string, value cell) {
	const width = 16
	for i, text := range strings.Split(value.text, "\n") {
		if i > 0 {
			name = ""
		}
		if name != "" {
			name += ":"
		}
		p.line(plain(fmt.Sprintf("%-*s ", width, name)), cell{text, value.mood})
		name = ""
	}
}

// tableGap is the space between two columns.
const tableGap = 3

// table writes a table with its header, aligned.
func (p *page) table(t *table) {
	header := make([]cell, len(t.columns))
	for i, c := range t.columns {
		header[i] = cell{c.name, moodBold}
	}
	shown, widths := p.layout(t)
	p.row(shown, widths, header)
	p.rows(t, t.rows)
}

// rows writes some rows of a table, aligned with all of it.
func (p *page) rows(t *table, rows []row) {
	shown, widths := p.layout(t)
	for _, r := range rows {
		p.row(shown, widths, r.cells)
	}
}

// layout are the columns to be printed, and how wide each is.
func (p *page) layout(t *table) (shown, widths []int) {
	shown, widths = p.shown(t), make([]int, len(t.columns))
	for _, i := range shown {
		widths[i] = width(t.columns[i].name)
		for _, r := range t.rows {
			widths[i] = max(widths[i], width(r.cells[i].text))
		}
	}
	return shown, widths
}

// shown are the indices of the columns to be printed.
func (p *page) shown(t *table) (all []int) {
	for i, c := range t.columns {
		if p.wide || !c.wide {
			all = append(all, i)
		}
	}
	return all
}

func (p *page) row(shown, widths []int, cells []cell) {
	var b strings.Builder
	for n, i := range shown {
		b.WriteString(p.paint(cells[i]))
		if n < len(shown)-1 {
			b.WriteString(strings.Repeat(" ", max(widths[i]-width(cells[i].text), 0)+tableGap))
		}
	}
	p.write(strings.TrimRight(b.String(), " ") + "\n")
}

// width is how many columns of a terminal a text takes.
func width(s string) int { return utf8.RuneCountInString(clean(s)) }

// clean takes out what steers a terminal: control characters, and those that turn the direction of text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r), r == utf8.RuneError:
			return '?'
		}
		return r
	}, s)
}

// age is how long ago something was, as kubectl shows it; "-": never.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(t)))
}

// left is how long something lasts, and "ended" when it does no more; "-": it is not known.
func left(t, now time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero():
		return "-"
	case d <= 0:
		return "ended " + duration.HumanDuration(-d) + " ago"
	default:
		return duration.HumanDuration(d)
	}
}
