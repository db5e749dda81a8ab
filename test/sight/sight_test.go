package sight

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// TestCheckNamesEachFault injects faults, and checks that check finds them: the faults of one room in parallel with
// other rooms, then the faults of shared parts one after the other.
func TestCheckNamesEachFault(t *testing.T) {
	rooms := map[string][]fault{"oslo": objectFaults, "bergen": edgeFaults, "tromso": apiServerFaults}
	names := []string{"oslo", "bergen", "tromso"}
	if testing.Short() {
		names = names[:1]
		rooms["oslo"] = slices.Concat(objectFaults, edgeFaults, apiServerFaults)
	}
	s := newSight(t, names...)
	for _, r := range s.rooms {
		that(t, "check finds no problem in "+r.name+" before a fault is injected", func(t *testing.T) {
			if err := proc.Wait(t.Context(), faults.CureTime, r.Healthy("")); err != nil {
				r.Show(t, "")
				t.Fatal(err)
			}
		})
	}
	s.rooms[0].proveConfig(t)
	if !testing.Short() { // then test/page alone needs a browser
		s.rooms[0].proveTrials(t)
		s.rooms[0].provePage(t)
	}
	t.Run("rooms", func(t *testing.T) {
		for _, r := range s.rooms {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				for _, f := range rooms[r.name] {
					faults.Prove(t, r, f)
				}
			})
		}
	})
	for _, f := range slices.Concat(gatewayFaults, hangFaults, controllerFaults) {
		faults.Prove(t, s.rooms[0], f)
	}
	if !testing.Short() {
		s.rooms[0].proveEdgePreflight(t)
	}
}
