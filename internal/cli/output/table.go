package output

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Style is how a text looks where there are colours.
type Style int

// The styles. StylePlain is none.
const (
	StylePlain Style = iota
	StyleGood
	StyleWarning
	StyleBad
	StyleFaint
	StyleBold
)

// sequences are the escape sequences of styles.
var sequences = map[Style]string{StyleGood: "\x1b[32m", StyleWarning: "\x1b[33m", StyleBad: "\x1b[31m", StyleFaint: "\x1b[2m", StyleBold: "\x1b[1m"}

// Cell is a text with a style.
type Cell struct {
	Text  string
	Style Style
}

// Plain is a cell without a style.
func Plain(text string) Cell { return Cell{text, StylePlain} }

// Styled is a cell in a style.
func Styled(s Style, text string) Cell { return Cell{text, s} }

// Line is some texts one after the other.
type Line []Cell

// column is one of a table.
type column struct {
	name string
	wide bool // shown with -o wide only
	live bool // changes by time alone, as ages do: --watch prints no row for it
}

// Columns are named ones. A name with + is for -o wide, one with ~ changes by time alone.
func Columns(names ...string) []column {
	var all []column
	for _, name := range names {
		all = append(all, column{strings.TrimRight(name, "+~"), strings.Contains(name, "+"), strings.Contains(name, "~")})
	}
	return all
}

// Table is what people read. Each row has a cell for each column; its key tells it from the others.
type Table struct {
	Columns []column
	Rows    []row
}

type row struct {
	key   string
	cells []Cell
	data  any // for json and yaml with --watch, where rows come one by one
}

// Add adds a row. Its key tells it from other rows, and data is what -o json prints of it.
func (t *Table) Add(key string, data any, cells ...Cell) {
	t.Rows = append(t.Rows, row{key, cells, data})
}

// Page is where a view is written. It remembers the first error, so that nobody has to look at each.
type Page struct {
	out     io.Writer
	Wide    bool
	colours bool
	Err     error
}

// NewPage returns a page that is written to out, with colours where out is a terminal that may have them.
func NewPage(out io.Writer, wide bool) *Page {
	return &Page{out: out, Wide: wide, colours: colourful(out)}
}

func (p *Page) write(s string) {
	if p.Err == nil {
		_, p.Err = io.WriteString(p.out, s)
	}
}

// paint is a text in its style, without anything that could steer a terminal: edges say of themselves what they like.
func (p *Page) paint(c Cell) string {
	text := clean(c.Text)
	if start, ok := sequences[c.Style]; ok && p.colours && text != "" {
		return start + text + "\x1b[0m"
	}
	return text
}

// Line writes some cells and ends the line.
func (p *Page) Line(cells ...Cell) {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString(p.paint(c))
	}
	p.write(b.String() + "\n")
}

// Heading begins a section.
func (p *Page) Heading(text string) { p.Line(); p.Line(Cell{text, StyleBold}) }

// Field writes a name and its value, aligned with others. Further lines of the value are below the first.
func (p *Page) Field(name string, value Cell) {
	const width = 16
	for i, text := range strings.Split(value.Text, "\n") {
		if i > 0 {
			name = ""
		}
		if name != "" {
			name += ":"
		}
		p.Line(Plain(fmt.Sprintf("%-*s ", width, name)), Cell{text, value.Style})
		name = ""
	}
}

// tableGap is the space between two columns.
const tableGap = 3

// Table writes a table with its header, aligned.
func (p *Page) Table(t *Table) {
	header := make([]Cell, len(t.Columns))
	for i, c := range t.Columns {
		header[i] = Cell{c.name, StyleBold}
	}
	shown, widths := p.layout(t)
	p.row(shown, widths, header)
	p.rows(t, t.Rows)
}

// Rows writes some rows of a table, aligned with all of it.
func (p *Page) rows(t *Table, rows []row) {
	shown, widths := p.layout(t)
	for _, r := range rows {
		p.row(shown, widths, r.cells)
	}
}

// layout are the columns to be printed, and how wide each is.
func (p *Page) layout(t *Table) (shown, widths []int) {
	shown, widths = p.shown(t), make([]int, len(t.Columns))
	for _, i := range shown {
		widths[i] = width(t.Columns[i].name)
		for _, r := range t.Rows {
			widths[i] = max(widths[i], width(r.cells[i].Text))
		}
	}
	return shown, widths
}

// shown are the indices of the columns to be printed.
func (p *Page) shown(t *Table) (all []int) {
	for i, c := range t.Columns {
		if p.Wide || !c.wide {
			all = append(all, i)
		}
	}
	return all
}

func (p *Page) row(shown, widths []int, cells []Cell) {
	var b strings.Builder
	for n, i := range shown {
		b.WriteString(p.paint(cells[i]))
		if n < len(shown)-1 {
			b.WriteString(strings.Repeat(" ", max(widths[i]-width(cells[i].Text), 0)+tableGap))
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

// Age is how long ago something was, as kubectl shows it; "-": never.
func Age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(t)))
}

// Left is how long something lasts, and "ended" when it does no more; "-": it is not known.
func Left(t, now time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero():
		return "-"
	case d <= 0:
		return "ended " + duration.HumanDuration(-d) + " ago"
	default:
		return duration.HumanDuration(d)
	}
}

// OneLine is the first line of a text.
func OneLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// OrDash is a text, or "-" for none.
func OrDash(s string) string { return cmp.Or(s, "-") }
