package source

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// reportTokenIndex indexes Tunnels by the hashes of their tokens for boot reports. It is separate from the index of
// bootstrap tokens, so that neither kind is accepted as the other.
const reportTokenIndex = "status.bootReportTokens.sha256"

func reportTokenHashes(object client.Object) []string {
	tunnel, ok := object.(*v1alpha1.Tunnel)
	if !ok {
		return nil
	}
	return hashes(tunnel.Status.BootReportTokens)
}

// ReportToken implements enrolserver.ReportTokens. A token is valid while it has not expired and its Tunnel belongs to
// a Cluster.
func (k *Kube) ReportToken(hash string) (enrol.Grant, error) {
	return k.grant(reportTokenIndex, hash, func(tunnel *v1alpha1.Tunnel) bool {
		_, ok := k.unexpired(tunnel.Status.BootReportTokens, hash)
		return ok
	})
}
