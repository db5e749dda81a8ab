// Package sight proves that faults are found: each that is known is injected into an installation that runs, and the command that a person
// would give has to name the hop and the cause, and the cure to work. Fairlead's programs, real Envoys and real apiservers run in
// network namespaces.
package sight

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/test/promise"
)

// What every test here says, in short.
var (
	that       = promise.That
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

var proof = promise.Proof{Name: "verify sight", Parallel: 4}

func TestMain(m *testing.M) {
	code := proof.Main(m)
	chromium.Stop()
	os.Exit(code)
}
