package report

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/bench/record"
)

const document = `# Benchmarks

Before.

<!-- bench suite=path name=throughput rows=streams plot=bars only.subject=direct,fairlead -->
old
<!-- /bench -->

<!-- bench suite=path name=growth rows=n plot=lines log=xy -->
<!-- /bench -->

After.
`

const page = `# Data path

<!-- bench goals=table -->
<!-- /bench -->

<!-- bench suite=path name=throughput rows=streams only.subject=direct table=none plot=bars -->
<!-- /bench -->

<!-- bench suite=path name=growth rows=n plot=lines log=xy -->
<!-- /bench -->

<!-- bench suite=path name=throughput rows=streams only.streams=8 plot=text -->
<!-- /bench -->
`

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	log, err := record.New(dir, "path")
	if err != nil {
		t.Fatal(err)
	}
	for _, streams := range []string{"64", "8"} {
		for i, subject := range []string{"direct", "fairlead", "other"} {
			log.Add(
				record.Result{
					Name:    "throughput",
					Subject: subject,
					Params:  map[string]string{"streams": streams},
					Unit:    "MB/s",
					Samples: []float64{90, 1234, 1300 + float64(i)},
				},
			)
		}
		log.Add(
			record.Result{
				Name:    "growth",
				Subject: "gateway",
				Params:  map[string]string{"n": streams},
				Unit:    "MB",
				Value:   0.012345,
			},
		)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "benchmarks.md")
	beside := filepath.Join(dir, "benchmarks", "path.md")
	err = errors.Join(os.Mkdir(filepath.Dir(beside), 0o700), os.WriteFile(path, []byte(document), 0o600),
		os.WriteFile(beside, []byte(page), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	var texts, plots [][]byte
	for range 2 {
		if err := Write(dir, path); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, read(t, path))
		plots = append(plots, read(t, filepath.Join(dir, "benchmarks", "path-throughput-streams-direct-fairlead.svg")))
	}
	if !bytes.Equal(texts[0], texts[1]) || !bytes.Equal(plots[0], plots[1]) {
		t.Error("the second report differs from the first")
	}
	text := string(texts[0])
	for _, want := range []string{
		"Before.\n", "After.\n", "| streams | direct | fairlead |",
		"| 8 | 1230 (662–1270) | 1230 (662–1270) |\n| 64 |", "| 8 | 0.0123 |",
		"](benchmarks/path-growth-n.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for _, want := range []string{
		"](path-growth-n.svg)", "\ndirect   ███", " 1230\nfairlead ███",
		"| goal | target | measured |", "| – / 1230 (662–1270) / 1230 (662–1270) | – | – | **not measured** |",
		"table=none plot=bars -->\n![path: throughput](path-throughput-streams-direct.svg)\n<!--",
	} {
		if text := string(read(t, beside)); !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for _, unwanted := range []string{"old", "other"} {
		if strings.Contains(text, unwanted) {
			t.Errorf("%q in:\n%s", unwanted, text)
		}
	}
}

func TestAnInvalidMarkerIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.md")
	text := "<!-- bench suite=path name=x rows=y color=red -->\nkept\n<!-- /bench -->\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.TempDir(), path); err == nil || !strings.Contains(err.Error(), `unknown setting "color"`) {
		t.Errorf("error: %v", err)
	}
	if string(read(t, path)) != text {
		t.Error("the document has changed")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
