// Package kubeconfigs proves that Cluster API itself brings up, changes and removes workload clusters which it reaches only
// through the tunnel: its core, KubeadmControlPlane and kubeadm bootstrap managers against a real management apiserver, and
// machines in network namespaces in which kubeadm makes real control planes out of the bootstrap data. The names of its tests
// are the promises.
//
// Two workload clusters live side by side, one in each mode: the serving certificates of the first have its tunnel hostname,
// those of the second don't. At the end both are moved to a second management cluster. With -short only the first machine of
// each comes up.
package kubeconfigs

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
)

// What every test here says, in short.
var (
	that     = promise.That
	measured = promise.Measured
	must     = promise.Must
)

var proof = promise.Proof{Name: "verify kubeconfigs", Parallel: 8, Missing: func() error {
	parts, err := workspace.FindParts()
	if err == nil {
		err = parts.FindMachineParts()
	}
	return err
}}

func TestMain(m *testing.M) { os.Exit(proof.Main(m)) }
