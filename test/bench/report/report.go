// Package report writes tables and plots of recorded results into documents. A document contains markers that select
// results. The text between a marker and its end is replaced, everything else stays. Equal results give equal bytes.
//
// A table with the parameter streams as rows and the subjects as columns, and a plot of it:
//
//	<!-- bench suite=path name=throughput rows=streams columns=subject plot=bars -->
//	<!-- /bench -->
//
// Settings of a marker, with _ for a space: suite; name (several with commas, or several times); rows (a parameter, or
// subject; several with commas); columns (a parameter, name, or subject: the default); plot (bars or lines: a picture
// below the table; text: a bar chart of characters instead of the table); log (x, y or xy); only.PARAMETER=VALUE or
// only.subject=A,B to leave the others out; label (heading of the rows). The marker facts=SUITE lists the machines that
// measured a suite, and goals=table is the table of goals. table=none leaves the table above a picture out. A marker
// may have several lines.
package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fairlead/fairlead/test/bench/goals"
	"github.com/fairlead/fairlead/test/bench/record"
)

var block = regexp.MustCompile(`(?s)(<!-- bench ([^>]*?) -->\n).*?(<!-- /bench -->)`)

// Write fills a document, and the documents in the folder beside it that has its name, from a folder of results. Plots
// go into that folder. A document with an invalid marker stays as it is.
func Write(results, document string) error {
	plots := strings.TrimSuffix(document, filepath.Ext(document))
	w := writer{results: results, plots: plots, files: map[string]record.File{}}
	if err := os.MkdirAll(w.plots, 0o755); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(w.plots, "*"+filepath.Ext(document)))
	for _, page := range append([]string{document}, pages...) {
		err = errors.Join(err, w.write(page))
	}
	return err
}

// write fills one document.
func (w *writer) write(document string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	if w.link, err = filepath.Rel(filepath.Dir(document), w.plots); err != nil {
		return err
	}
	var failed error
	out := block.ReplaceAllStringFunc(string(text), func(found string) string {
		parts := block.FindStringSubmatch(found)
		content, err := w.fill(parts[2])
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: marker %q: %w", document, parts[2], err))
			return found
		}
		return parts[1] + content + parts[3]
	})
	if failed != nil {
		return failed
	}
	return os.WriteFile(document, []byte(out), 0o644)
}

type writer struct {
	results string
	plots   string // folder, beside the document
	link    string // of that folder, from the document that is being written
	files   map[string]record.File
}

// fill returns the text after a marker.
func (w *writer) fill(marker string) (string, error) {
	s, err := parse(marker)
	if err != nil {
		return "", err
	}
	if s.goals {
		return w.goals()
	}
	file, err := w.load(s.suite)
	if err != nil {
		return "", err
	}
	if s.facts {
		return facts(file), nil
	}
	t := tabulate(s, file.Results)
	if len(t.rows) == 0 {
		return "Not measured yet.\n", nil
	}
	if s.plot == "text" {
		return t.chart(), nil
	}
	content := ""
	if !s.pictureOnly {
		content = t.markdown()
	}
	if s.plot != "" {
		name := s.file() + ".svg"
		if err := os.WriteFile(filepath.Join(w.plots, name), t.svg(), 0o644); err != nil {
			return "", err
		}
		content += picture(s.title(), path.Join(filepath.ToSlash(w.link), name))
		if s.pictureOnly {
			content = strings.TrimPrefix(content, "\n")
		}
	}
	return content, nil
}

// goals returns the table of goals, and which runs measured them.
func (w *writer) goals() (string, error) {
	results, err := goals.Load(w.results)
	if err != nil {
		return "", err
	}
	causes, err := goals.Causes()
	if err != nil {
		return "", err
	}
	rows := goals.Evaluate(goals.All, results, causes)
	table := goals.Markdown(rows, strings.TrimPrefix(path.Join(filepath.ToSlash(w.link), "..")+"/", "./"))
	runs := strings.Join(goals.Runs(rows, results), ",\n")
	if runs == "" {
		return table, nil
	}
	return table + "\nMedian, in brackets the middle half of the rounds. Runs:\n" + runs + ".\n", nil
}

// picture is a link to a picture, on two lines if one is too long.
func picture(title, file string) string {
	line := fmt.Sprintf("\n![%s](%s)\n", title, file)
	if len(line) > 120 {
		line = fmt.Sprintf("\n![%s\n](%s)\n", title, file)
	}
	return line
}

func (w *writer) load(suite string) (record.File, error) {
	if file, ok := w.files[suite]; ok {
		return file, nil
	}
	file, err := record.Load(filepath.Join(w.results, suite+".jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	w.files[suite] = file
	return file, nil
}

// facts lists the machines of the results' runs, without duplicates.
func facts(file record.File) string {
	var out strings.Builder
	written := map[string]bool{}
	for _, r := range file.Results {
		m := file.Machines[r.Run]
		line := fmt.Sprintf(
			"- %s: %s, %d cores, %.0f GB, Linux %s,\n  Go %s, Envoy %s, commit %s%s\n", m.Date, m.CPU, m.Cores,
			float64(m.MemoryMB)/1024, m.Kernel, strings.TrimPrefix(m.Go, "go"), m.Envoy, m.Commit, stolen(m),
		)
		if !written[line] {
			written[line] = true
			out.WriteString(line)
		}
	}
	if out.Len() == 0 {
		return "Not measured yet.\n"
	}
	return out.String()
}

// stolen describes the part of the cores' time that a hypervisor gave to other machines, unless it is unknown or zero.
func stolen(m record.Machine) string {
	if m.Stolen == 0 {
		return ""
	}
	return fmt.Sprintf("; a hypervisor gave %.1f %% of the cores' time to others", m.Stolen)
}
