package robustness

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/test/promise"
)

// Short names for the functions of package promise.
var (
	that     = promise.That
	measured = promise.Measured
	must     = promise.Must
)

var proof = promise.Proof{Name: "verify robustness", Parallel: 1}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
