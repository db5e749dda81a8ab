// Package operations proves docs/operations.md: what it says is done on an installation that runs, with the commands that it shows, taken from the
// document itself. Fairlead's programs, real Envoys, real apiservers and Cluster API run in network namespaces. There is no kubelet: what a
// Deployment or a StatefulSet asks for is started and stopped by the test, which says so where it does.
package operations

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

var proof = promise.Proof{Name: "verify operations", Parallel: 2}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
