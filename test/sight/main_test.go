// Package sight proves that faults are found. Each known fault is injected into a running installation. The command
// that an operator would run must then name the hop and the cause, and the cure must work. Fairlead's programs, real
// Envoys and real apiservers run in network namespaces.
package sight

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/test/promise"
)

// Short names for the functions of package promise.
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
