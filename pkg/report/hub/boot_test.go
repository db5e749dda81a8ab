package hub

import (
	"testing"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestAnotherBootReplacesThePreviousReport(t *testing.T) {
	h := New(domain, newRules(), newWorld(t).Log)
	machine := &reportv1.Machine{Hostname: "m"}
	for _, r := range []*reportv1.BootReport{
		{BootId: "b", Sequence: 900, State: reportv1.BootState_BOOT_STATE_RUNNING, Step: "first", Machine: machine},
		{BootId: "c", Sequence: 5, State: reportv1.BootState_BOOT_STATE_FAILED, Step: "second", Machine: machine},
	} {
		if _, err := h.Boot(idA, r); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.boots.Get(idA, "m"); got.Report.GetStep() != "second" {
		t.Errorf("got %v", got.Report)
	}
}
