// Package security attacks an installation the way an outsider, a tenant and a namespace owner would, and proves what
// stops each attack. Fairlead's programs, real Envoys and real apiservers run in network namespaces. Each row of the
// table that a run prints is one attack. A control counts as proven only if the same attack succeeds where the control
// is missing.
package security

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/fairlead/fairlead/test/promise"
)

// Short names for the functions of package promise.
var (
	that       = promise.That
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

var proof = promise.Proof{Name: "verify security", Parallel: 1}

func TestMain(m *testing.M) {
	code := proof.MainWith(m, printAttacks)
	os.Exit(code)
}

// attempt is one row of the table: the attack, and what stopped it.
type attempt struct {
	tried, stoppedBy, result string
}

var attempts struct {
	sync.Mutex
	rows []attempt
}

// attack runs one attack as a check. tried states what the attacker tries, and stoppedBy names the control. defended
// fails the test if the attack succeeds. undefended runs the same attack where the control is missing, and fails the
// test if the attack does not succeed there. If it is nil, another test, named in stoppedBy, shows that the control is
// necessary.
func attack(t *testing.T, tried, stoppedBy string, defended, undefended func(t *testing.T)) {
	t.Helper()
	row := attempt{tried: tried, stoppedBy: stoppedBy, result: "stopped"}
	if !that(t, "this attack fails: "+tried, defended) {
		row.result = "NOT STOPPED"
	}
	if undefended != nil {
		if that(t, "this attack succeeds without the control: "+tried, undefended) {
			row.result += ", succeeds without the control"
		} else {
			row.result += ", CONTROL NOT SHOWN TO BE NECESSARY"
		}
	}
	attempts.Lock()
	attempts.rows = append(attempts.rows, row)
	attempts.Unlock()
}

// printAttacks prints the table, and counts its rows for the last line of the run.
func printAttacks() {
	attempts.Lock()
	defer attempts.Unlock()
	measured("attacks", float64(len(attempts.rows)))
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT WAS TRIED\tWHAT STOPPED IT\tRESULT")
	for _, row := range attempts.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", row.tried, row.stoppedBy, row.result)
	}
	_ = w.Flush()
}
