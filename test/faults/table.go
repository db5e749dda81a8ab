package faults

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// Document is the page with the tables of faults, seen from the folder of a proof.
const Document = "../../docs/troubleshooting.md"

// CheckTable proves that the table of a name in Document has the faults of a test, each once and complete. With -update
// it writes the table.
func CheckTable[S Subject](t *testing.T, name string, all []Fault[S]) {
	t.Helper()
	var table strings.Builder
	table.WriteString("| fault | hop in `check` | cause in `check` | what to do |\n|---|---|---|---|\n")
	seen := map[string]bool{}
	for _, f := range all {
		key := cmp.Or(f.ID, f.Title)
		if seen[key] || f.Title == "" || f.Cause == "" || f.Cure == "" || f.Do == "" {
			t.Errorf("%q is there twice, or is not complete", key)
		}
		seen[key] = true
		mark := "✗"
		if f.Status == check.Warning {
			mark = "!"
		}
		fmt.Fprintf(&table, "| %s | %s `%s` | … %s … | %s |\n",
			f.Title, mark, f.Hop, strings.ReplaceAll(f.Cause, "|", "\\|"), f.Do)
	}
	begin, end := "<!-- "+name+": written by `make update-golden` -->\n", "<!-- end of "+name+" -->"
	data, err := os.ReadFile(Document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table of %s", Document, name)
	}
	golden.CheckFile(t, Document, []byte(before+begin+table.String()+end+after))
}
