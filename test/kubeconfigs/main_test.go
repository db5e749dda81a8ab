// Package kubeconfigs proves that Cluster API itself creates, changes and removes workload clusters that it reaches
// only through the tunnel. Its core, KubeadmControlPlane and kubeadm bootstrap managers run with a real management
// apiserver, and kubeadm makes real control planes from the bootstrap data on machines in network namespaces. The names
// of its tests are the promises.
//
// Two workload clusters run side by side, one in each mode: the serving certificates of the first contain its tunnel
// hostname, the ones of the second do not. At the end both are moved to a second management cluster. With -short only
// the first machine of each is created, and Cluster API's managers restart meanwhile.
package kubeconfigs

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/promise"
)

// Short names for the functions of package promise.
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
