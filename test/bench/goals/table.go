package goals

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fairlead/fairlead/test/bench/record"
)

var heading = []string{"goal", "target", "measured", "pair", "best other tunnel", "result"}

// Text returns the table for a terminal.
func Text(rows []Row) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, cells := range append([][]string{heading}, table(rows, func(c Cause) string {
		return c.Text + " (docs/" + c.Profile + ")"
	})...) {
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush()
	return out.String()
}

// Markdown returns the table for a document. docs is the way from the document to the folder docs, such as "..".
func Markdown(rows []Row, docs string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "| %s |\n|---|---|---:|---:|---:|---|\n", strings.Join(heading, " | "))
	for _, cells := range table(rows, func(c Cause) string {
		return fmt.Sprintf("%s ([profile](%s%s))", c.Text, docs, c.Profile)
	}) {
		fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | "))
	}
	return out.String()
}

// Runs returns the dates and commits of the runs that measured the figures, oldest first.
func Runs(rows []Row, results Results) []string {
	runs := map[string]bool{}
	for _, row := range rows {
		for _, c := range row.Cases {
			if c.run != "" {
				runs[c.run] = true
			}
		}
	}
	var all []string
	for _, run := range slices.Sorted(maps.Keys(runs)) {
		date, _, _ := strings.Cut(run, "T")
		all = append(all, date+" "+results.machines[run].Commit)
	}
	return slices.Compact(all)
}

func table(rows []Row, cause func(Cause) string) (cells [][]string) {
	for _, row := range rows {
		cells = append(cells, []string{
			row.Title + ", " + row.Unit, row.target(),
			row.each(func(c CaseResult) string { return spread(c.Ours) }),
			row.each(func(c CaseResult) string { return spread(c.Pair) }),
			row.each(func(c CaseResult) string {
				if c.Best == nil {
					return "–"
				}
				return value(c.Best) + " " + c.BestName
			}),
			row.result(cause),
		})
	}
	return cells
}

// each joins a text of each case. Equal texts become one.
func (r Row) each(text func(CaseResult) string) string {
	var all []string
	for _, c := range r.Cases {
		all = append(all, text(c))
	}
	if len(slices.Compact(slices.Clone(all))) == 1 {
		return all[0]
	}
	return strings.Join(all, " / ")
}

func (r Row) target() string {
	bounds := r.each(func(c CaseResult) string { return strconv.FormatFloat(c.bound, 'g', -1, 64) })
	text := "≤ " + bounds
	if r.atLeast {
		text = "≥ " + bounds
	}
	switch r.relativeTo {
	case "":
	case Pair:
		text += " × the pair"
	default:
		text += " × " + r.relativeTo
	}
	if r.ahead {
		text += ", ahead of other tunnels"
	}
	return text
}

// result describes the outcome: what is compared if that is not the measured figure, and the causes.
func (r Row) result(cause func(Cause) string) string {
	var parts []string
	if r.relativeTo != "" && r.Outcome != NotMeasured {
		parts = append(parts, "× "+r.each(func(c CaseResult) string { return record.Format(c.Compared) }))
	}
	for _, o := range []Outcome{Met, Excused, Missed, NotMeasured} {
		cases := r.with(o)
		if len(cases) == 0 {
			continue
		}
		text := map[Outcome]string{
			Met: "met", Excused: "not met", Missed: "**not met**, no cause recorded", NotMeasured: "**not measured**",
		}[o]
		if len(cases) < len(r.Cases) {
			var labels []string
			for _, c := range cases {
				labels = append(labels, c.Label)
			}
			text = strings.Join(labels, ", ") + ": " + text
		}
		var told []*Cause
		for _, c := range cases {
			if c.Cause != nil && !slices.Contains(told, c.Cause) {
				told = append(told, c.Cause)
				text += ": " + cause(*c.Cause)
			}
		}
		for _, c := range cases {
			if c.Behind {
				text += strings.TrimSuffix(", "+c.BestName+" ahead at "+c.Label, " at ")
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func (r Row) with(o Outcome) (cases []CaseResult) {
	for _, c := range r.Cases {
		if c.Outcome == o {
			cases = append(cases, c)
		}
	}
	return cases
}

// Failed returns the IDs of the goals that are missed without a cause or not measured.
func Failed(rows []Row) (ids []string) {
	for _, row := range rows {
		if row.Outcome >= Missed {
			ids = append(ids, row.ID)
		}
	}
	return ids
}

func value(f *Figure) string {
	if f == nil {
		return "–"
	}
	return record.Format(f.Value)
}

func spread(f *Figure) string {
	if f == nil || f.Low == f.High {
		return value(f)
	}
	return fmt.Sprintf("%s (%s–%s)", value(f), record.Format(f.Low), record.Format(f.High))
}
