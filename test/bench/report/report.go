// Package report makes tables and plots of recorded results. Markers in a document select the results. The text between
// two markers is replaced, and everything else is kept. Equal results make equal bytes.
//
// This example makes a table with a row for each value of the parameter streams and a column for each subject, and a
// plot of it:
//
//	<!-- bench suite=path name=throughput rows=streams columns=subject plot=bars -->
//	<!-- /bench -->
//
// Settings of a marker, where _ stands for a space: suite; name (several with commas); rows (a parameter, or subject;
// several with commas); columns (a parameter, name, or subject: the default); plot (bars or lines); log (x, y or xy);
// only.PARAMETER=VALUE or only.subject=A,B to select results; label (heading of the rows). The special marker with
// facts=SUITE lists the machines of the suite's results.
package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fairlead/fairlead/test/bench/record"
)

var block = regexp.MustCompile(`(?s)(<!-- bench ([^>]*?) -->\n).*?(<!-- /bench -->)`)

// Write updates the tables of a document, and the plots beside it, from a folder of results.
func Write(results, document string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	w := writer{results: results, plots: strings.TrimSuffix(document, filepath.Ext(document)), files: map[string]record.File{}}
	if err := os.MkdirAll(w.plots, 0o755); err != nil {
		return err
	}
	var failed error
	out := block.ReplaceAllStringFunc(string(text), func(found string) string {
		parts := block.FindStringSubmatch(found)
		content, err := w.fill(parts[2])
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("marker %q: %w", parts[2], err))
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
	plots   string // folder of the plots, beside the document
	files   map[string]record.File
}

// fill returns the text after a marker.
func (w *writer) fill(marker string) (string, error) {
	s, err := parse(marker)
	if err != nil {
		return "", err
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
	content := t.markdown()
	if s.plot != "" {
		name := s.file() + ".svg"
		if err := os.WriteFile(filepath.Join(w.plots, name), t.svg(), 0o644); err != nil {
			return "", err
		}
		content += fmt.Sprintf("\n![%s](%s/%s)\n", s.title(), filepath.Base(w.plots), name)
	}
	return content, nil
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
	said := map[string]bool{}
	for _, r := range file.Results {
		m := file.Machines[r.Run]
		line := fmt.Sprintf("- %s: %s, %d cores, %.0f GB, Linux %s, Go %s, Envoy %s, commit %s%s\n",
			m.Date, m.CPU, m.Cores, float64(m.MemoryMB)/1024, m.Kernel, strings.TrimPrefix(m.Go, "go"), m.Envoy, m.Commit, stolen(m))
		if !said[line] {
			said[line] = true
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
