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

// Style is the appearance of a text on a terminal with colours.
type Style int

// The styles. StylePlain is no style.
const (
	StylePlain Style = iota
	StyleGood
	StyleWarning
	StyleBad
	StyleFaint
	StyleBold
)

// sequences are the escape sequences of styles.
var sequences = map[Style]string{
	StyleGood:    "\x1b[32m",
	StyleWarning: "\x1b[33m",
	StyleBad:     "\x1b[31m",
	StyleFaint:   "\x1b[2m",
	StyleBold:    "\x1b[1m",
}

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

// column is a column of a table.
type column struct {
	name string
	wide bool // shown with -o wide only
	live bool // changes by time alone, like an age: --watch prints no row for it
}

// Columns returns columns with the given names. A name that ends with + is shown only with -o wide, and the values of
// one that ends with ~ change by time alone.
func Columns(names ...string) []column {
	var all []column
	for _, name := range names {
		all = append(all, column{strings.TrimRight(name, "+~"), strings.Contains(name, "+"), strings.Contains(name, "~")})
	}
	return all
}

// Table is output for people. Each row has a cell for each column, and a unique key.
type Table struct {
	Columns []column
	Rows    []row
}

type row struct {
	key   string
	cells []Cell
	data  any // for json and yaml with --watch, which print row by row
}

// Add adds a row. key is unique in the table, and data is what -o json prints for the row.
func (t *Table) Add(key string, data any, cells ...Cell) {
	t.Rows = append(t.Rows, row{key, cells, data})
}

// Page writes a view. It stores the first error, so that callers need to check only once.
type Page struct {
	out     io.Writer
	Wide    bool
	colours bool
	Err     error
}

// NewPage returns a Page that writes to out, with colours if out is a terminal that supports them.
func NewPage(out io.Writer, wide bool) *Page {
	return &Page{out: out, Wide: wide, colours: colourful(out)}
}

func (p *Page) write(s string) {
	if p.Err == nil {
		_, p.Err = io.WriteString(p.out, s)
	}
}

// paint returns a text in its style, without anything that could control a terminal: edges may report any text.
func (p *Page) paint(c Cell) string {
	text := clean(c.Text)
	if start, ok := sequences[c.Style]; ok && p.colours && text != "" {
		return start + text + "\x1b[0m"
	}
	return text
}

// Line writes cells and ends the line.
func (p *Page) Line(cells ...Cell) {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString(p.paint(c))
	}
	p.write(b.String() + "\n")
}

// Heading begins a section.
func (p *Page) Heading(text string) { p.Line(); p.Line(Cell{text, StyleBold}) }

// Field writes a name and its value, aligned with other fields. Further lines of the value are aligned below the first.
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

// rows writes some rows of a table, aligned with the whole table.
func (p *Page) rows(t *Table, rows []row) {
	shown, widths := p.layout(t)
	for _, r := range rows {
		p.row(shown, widths, r.cells)
	}
}

// layout returns the columns to print, and the width of each.
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

// shown returns the indices of the columns to print.
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

// width returns how many columns of a terminal a text occupies.
func width(s string) int { return utf8.RuneCountInString(clean(s)) }

// clean removes what controls a terminal: control characters, and characters that change the direction of text.
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

// Age returns how long ago t is, formatted like kubectl, or "-" for the zero time.
func Age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(t)))
}

// Left returns how long it is until t, "ended ... ago" if t has passed, or "-" if t is unknown.
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

// OneLine returns the first line of a text.
func OneLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// OrDash returns a text, or "-" if it is empty.
func OrDash(s string) string { return cmp.Or(s, "-") }
