package sight

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/faults"
)

// allFaults returns the faults of the table.
func allFaults() []fault {
	return slices.Concat(objectFaults, gatewayFaults, edgeFaults, apiServerFaults, hangFaults, controllerFaults)
}

// TestTheTableOfFaultsMatchesTheTests proves that the documented faults are the ones that are injected here.
func TestTheTableOfFaultsMatchesTheTests(t *testing.T) {
	all := allFaults()
	if len(all) < 25 {
		t.Errorf("there are only %d faults", len(all))
	}
	faults.CheckTable(t, "faults", all)
}

// TestEachHopIsInTheDocument proves that each hop has a section.
func TestEachHopIsInTheDocument(t *testing.T) {
	data, err := os.ReadFile(faults.Document)
	must(t, err)
	for _, h := range check.Hops() {
		if !strings.Contains(string(data), fmt.Sprintf("| `%s` |", h.ID)) {
			t.Errorf("%s has nothing about the hop %s", faults.Document, h.ID)
		}
	}
}
