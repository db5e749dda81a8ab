// Package metrics proves that an installation that runs can be watched: a real Prometheus scrapes all programs and both Envoys, every query
// of the dashboard and of the rules has an answer, and what is served is what the list says; and what people gather
// of it has all of that, and no secret. Fairlead's programs and real Envoys run in network namespaces.
package metrics

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

var proof = promise.Proof{Name: "verify sight, metrics", Parallel: 2}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
