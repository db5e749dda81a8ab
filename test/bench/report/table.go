package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fairlead/fairlead/test/bench/record"
)

// settings are the settings of a marker.
type settings struct {
	suite       string
	names, rows []string
	columns     string
	plot, log   string
	label       string
	facts       bool
	goals       bool
	pictureOnly bool
	only        map[string][]string // by parameter, or subject
}

func parse(marker string) (settings, error) {
	s := settings{columns: "subject", only: map[string][]string{}}
	for _, word := range strings.Fields(marker) {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return s, fmt.Errorf("%q is no setting: write key=value", word)
		}
		parameter, only := strings.CutPrefix(key, "only.")
		switch {
		case only:
			s.only[parameter] = strings.Split(value, ",")
		case key == "facts":
			s.facts, s.suite = true, value
		case key == "goals" && value == "table":
			s.goals = true
		case key == "table" && value == "none":
			s.pictureOnly = true
		case key == "suite":
			s.suite = value
		case key == "name":
			s.names = append(s.names, strings.Split(spaces(value), ",")...)
		case key == "rows":
			s.rows = strings.Split(spaces(value), ",")
		case key == "columns":
			s.columns = value
		case key == "plot":
			s.plot = value
		case key == "log":
			s.log = value
		case key == "label":
			s.label = spaces(value)
		default:
			return s, fmt.Errorf("unknown setting %q", key)
		}
	}
	if s.goals {
		return s, nil
	}
	if s.suite == "" || !s.facts && (len(s.names) == 0 || len(s.rows) == 0) {
		return s, fmt.Errorf("suite, name and rows are needed, or facts, or goals")
	}
	return s, nil
}

// spaces replaces each _, which stands for a space in a marker.
func spaces(value string) string { return strings.ReplaceAll(value, "_", " ") }

func (s settings) title() string { return s.suite + ": " + strings.Join(s.names, ", ") }

// file returns the name of the plot without its extension.
func (s settings) file() string {
	name := s.suite + "-" + strings.Join(s.names, "-")
	for _, r := range s.rows {
		name += "-" + r
	}
	for _, key := range slices.Sorted(mapKeys(s.only)) {
		name += "-" + strings.Join(s.only[key], "-")
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("/ .()", r) {
			return '-'
		}
		return r
	}, name)
}

func mapKeys(m map[string][]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// table holds results by row and column. Rows and columns that are numbers are sorted by number; subjects stay in the
// order in which they were measured.
type table struct {
	settings
	unit    string
	rows    []string
	columns []string
	cells   map[[2]string]record.Result
}

func tabulate(s settings, results []record.Result) table {
	t := table{settings: s, cells: map[[2]string]record.Result{}}
	for _, r := range results {
		if !slices.Contains(s.names, r.Name) || !s.wants(r) {
			continue
		}
		var row []string
		for _, parameter := range s.rows {
			row = append(row, of(r, parameter))
		}
		at := [2]string{strings.Join(row, ", "), of(r, s.columns)}
		t.cells[at] = r
		t.unit = r.Unit
		if !slices.Contains(t.rows, at[0]) {
			t.rows = append(t.rows, at[0])
		}
		if !slices.Contains(t.columns, at[1]) {
			t.columns = append(t.columns, at[1])
		}
	}
	slices.SortStableFunc(t.rows, byNumber)
	slices.SortStableFunc(t.columns, byNumber)
	if s.columns == "name" {
		slices.SortFunc(
			t.columns, func(a, b string) int { return cmp.Compare(slices.Index(s.names, a), slices.Index(s.names, b)) },
		)
	}
	return t
}

func (s settings) wants(r record.Result) bool {
	for parameter, values := range s.only {
		if !slices.Contains(values, of(r, parameter)) {
			return false
		}
	}
	return true
}

func of(r record.Result, parameter string) string {
	switch parameter {
	case "subject":
		return r.Subject
	case "name":
		return r.Name
	default:
		return r.Params[parameter]
	}
}

func byNumber(a, b string) int {
	x, errA := strconv.ParseFloat(leading(a), 64)
	y, errB := strconv.ParseFloat(leading(b), 64)
	if errA != nil || errB != nil {
		return 0
	}
	return cmp.Compare(x, y)
}

// leading returns the first of several parameters.
func leading(row string) string {
	first, _, _ := strings.Cut(row, ", ")
	return first
}

func (t table) markdown() string {
	var out strings.Builder
	label := cmp.Or(t.label, strings.Join(t.settings.rows, ", "))
	fmt.Fprintf(&out, "| %s |", label)
	for _, c := range t.columns {
		fmt.Fprintf(&out, " %s |", c)
	}
	out.WriteString("\n|---|" + strings.Repeat("---:|", len(t.columns)) + "\n")
	for _, row := range t.rows {
		fmt.Fprintf(&out, "| %s |", row)
		for _, c := range t.columns {
			fmt.Fprintf(&out, " %s |", t.cell(row, c))
		}
		out.WriteString("\n")
	}
	fmt.Fprintf(&out, "\n%s; median, in brackets the middle half of the rounds.\n", t.unit)
	return out.String()
}

// chart is a bar chart of characters, one bar for each cell. The longest bar has 40 characters.
func (t table) chart() string {
	const longest = 40
	var most float64
	var label int
	for _, row := range t.rows {
		for _, column := range t.columns {
			most = max(most, t.cells[[2]string{row, column}].Value)
			label = max(label, utf8.RuneCountInString(t.bar(row, column)))
		}
	}
	var out strings.Builder
	out.WriteString("```\n")
	for _, row := range t.rows {
		for _, column := range t.columns {
			if r, ok := t.cells[[2]string{row, column}]; ok && most > 0 {
				width := int(math.Round(r.Value / most * longest))
				fmt.Fprintf(&out, "%-*s %s %s\n", label, t.bar(row, column), strings.Repeat("█", width), record.Format(r.Value))
			}
		}
	}
	fmt.Fprintf(&out, "```\n\n%s; median.\n", t.unit)
	return out.String()
}

// bar is the label of a bar: the column, and the row where there are several.
func (t table) bar(row, column string) string {
	switch {
	case len(t.rows) == 1:
		return column
	case len(t.columns) == 1:
		return row
	default:
		return row + ", " + column
	}
}

func (t table) cell(row, column string) string {
	r, ok := t.cells[[2]string{row, column}]
	if !ok {
		return "–"
	}
	if r.Text != "" {
		return record.Format(r.Value) + ", " + r.Text
	}
	if len(r.Samples) < 3 {
		return record.Format(r.Value)
	}
	low, high := record.Spread(r.Samples)
	return fmt.Sprintf("%s (%s–%s)", record.Format(r.Value), record.Format(low), record.Format(high))
}
