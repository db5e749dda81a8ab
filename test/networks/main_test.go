// Package networks proves the promises about RemoteNetworks: apiservers in the management network reach kubelets,
// webhooks and aggregated APIs in networks that they cannot dial, machines there reach their apiserver, and no
// apiserver reaches a network of another Cluster. Fairlead's programs, real Envoys and real apiservers run in network
// namespaces; kubelets without containers serve the Nodes. The names of its tests are the promises.
package networks

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

var proof = promise.Proof{Name: "verify networks", Parallel: 1}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
