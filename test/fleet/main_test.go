// Package fleet proves the promises about many gateways, servers and workload clusters together: replicas that come and
// go, workers that always have a tunnel, and limits that isolate workload clusters from each other. Fairlead's
// programs, real Envoys and real apiservers run in network namespaces. The names of its tests are the promises.
//
// Each test has its own installation. Most tests measure short times and run one after the other. The ones of an idle
// edge, which waits for minutes, and of IPv6 alone run beside them.
package fleet

import (
	"os"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

// Short names for the functions of package promise.
var (
	that       = promise.That
	measured   = promise.Measured
	eventually = promise.Eventually
	must       = promise.Must
)

// All tests begin at once, and most of them wait for their turn.
var proof = promise.Proof{Name: "verify fleet", Parallel: 100}

// smoke is the only test that runs with -short.
const smoke = "TestNoSingleServerIsRequired"

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }

var turn sync.Mutex

// inTurn makes a test wait until no other test runs that has called inTurn. Its turn lasts until its installation has
// ended.
func inTurn(t *testing.T) {
	t.Parallel()
	turn.Lock()
	t.Cleanup(turn.Unlock)
}

// newWorld builds an installation that ends with the test.
func newWorld(t *testing.T, options lab.Options) *world.World {
	t.Helper()
	if testing.Short() && t.Name() != smoke {
		t.Skip("the short form has " + smoke + " alone")
	}
	return world.Start(t, &proof, options)
}
