package sight

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

var update = flag.Bool("update", false, "write the table of faults into the document anew")

const (
	document   = "../../docs/troubleshooting.md"
	begin, end = "<!-- faults: written by go test ./test/sight -run Table -update -->\n", "<!-- end of faults -->"
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
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", document)
	}
	if old == table.String() {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is not that of the tests: go test ./test/sight -run Table -update", document)
	}
	must(t, os.WriteFile(document, []byte(before+begin+table.String()+end+after), 0o644))
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
