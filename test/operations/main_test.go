// Package operations proves docs/operations.md: it performs the documented procedures on a running installation, with
// the commands of the document itself. Fairlead's programs, real Envoys, real apiservers and Cluster API run in network
// namespaces. There is no kubelet: the tests start and stop what a Deployment or a StatefulSet requires.
package operations

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

var proof = promise.Proof{Name: "verify operations", Parallel: 2}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
