package sight

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

const (
	document   = "../../docs/troubleshooting.md"
	begin, end = "<!-- faults: written by `make update-golden` -->\n", "<!-- end of faults -->"
)

// allFaults returns the faults of the table.
func allFaults() []fault {
	return slices.Concat(objectFaults, gatewayFaults, edgeFaults, apiServerFaults, hangFaults, controllerFaults)
}

// TestTheTableOfFaultsMatchesTheTests proves that the documented faults are the ones that are injected here.
func TestTheTableOfFaultsMatchesTheTests(t *testing.T) {
	var table strings.Builder
	table.WriteString("| fault | hop in `check` | cause in `check` | what to do |\n|---|---|---|---|\n")
	seen := map[string]bool{}
	for _, f := range allFaults() {
		if seen[f.ID] || f.Title == "" || f.Cause == "" || f.Cure == "" || f.Do == "" {
			t.Errorf("%s is there twice, or is not complete", f.ID)
		}
		seen[f.ID] = true
		mark := "✗"
		if f.Status == check.Warning {
			mark = "!"
		}
		fmt.Fprintf(
			&table,
			"| %s | %s `%s` | … %s … | %s |\n",
			f.Title,
			mark,
			f.Hop,
			strings.ReplaceAll(f.Cause, "|", "\\|"),
			f.Do,
		)
	}
	if len(seen) < 25 {
		t.Errorf("there are only %d faults", len(seen))
	}
	data, err := os.ReadFile(document)
	must(t, err)
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", document)
	}
	golden.CheckFile(t, document, []byte(before+begin+table.String()+end+after))
}

// TestEachHopIsInTheDocument proves that each hop has a section.
func TestEachHopIsInTheDocument(t *testing.T) {
	data, err := os.ReadFile(document)
	must(t, err)
	for _, h := range check.Hops() {
		if !strings.Contains(string(data), fmt.Sprintf("| `%s` |", h.ID)) {
			t.Errorf("%s has nothing about the hop %s", document, h.ID)
		}
	}
}
