// Package metrics proves that a running installation can be monitored. A real Prometheus scrapes all programs and both
// Envoys. Every query of the dashboard and of the rules has an answer, and the programs serve exactly the metrics of
// the list. A support bundle contains all of that, and no secret. Fairlead's programs and real Envoys run in network
// namespaces.
package metrics

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

var proof = promise.Proof{Name: "verify sight, metrics", Parallel: 2}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
