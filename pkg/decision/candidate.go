package decision

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// CandidateOf combines a Cluster and the Tunnel of the same name. It returns false if there is nothing to serve: if
// either is nil, if the Tunnel has no id yet, if its mode does not lead through the gateways, or if it belongs to an
// earlier Cluster of the same name. Pausing or deleting either object changes nothing until the object is gone.
func CandidateOf(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (Candidate, bool) {
	if cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" || !tunnel.Spec.Kubeconfig.Mode.Tunnelled() ||
		!tunnel.OfCluster() || !metav1.IsControlledBy(tunnel, cluster) {
		return Candidate{}, false
	}
	first, others := apiServers(cluster, tunnel)
	return Candidate{
		Key:          model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name},
		ClusterUID:   cluster.UID,
		Created:      tunnel.CreationTimestamp.Time,
		ID:           tunnel.ClaimedID(),
		ExtraNames:   tunnel.Spec.ExtraNames,
		EndpointName: tunnel.Status.Kubeconfig.EndpointName,
		APIServer:    first,
		Others:       others,
		Limits:       limits(tunnel.Spec.Limits),
		Revoked:      tunnel.Spec.RevokedEdges,
		Held:         onRecord(tunnel.Namespace, tunnel.Status),
	}, true
}

// limits converts the limits of a Tunnel. They may be invalid: the model validates them.
func limits(spec v1alpha1.LimitsSpec) model.Limits {
	l := model.Limits{Connections: int64(spec.Connections), Pending: int64(spec.PendingConnections)}
	if spec.Bandwidth != nil {
		l.Bandwidth = spec.Bandwidth.Value()
		if l.Bandwidth == 0 {
			l.Bandwidth = -1 // a limit of zero bytes is not the same as no limit
		}
	}
	return l
}

// onRecord returns the names and the id that are recorded in the status, and the claims of a network in a namespace.
func onRecord(namespace string, status v1alpha1.TunnelStatus) []string {
	all := append(slices.Clone(status.Names), recordedClaims(namespace, status)...)
	if status.ID == "" {
		return all
	}
	return append(all, status.ID)
}

// Build resolves several candidates together, so that the result does not depend on their order. Resolution i is the
// result for candidate i. The names stay claimed.
func Build(d model.TunnelDomain, names *Names, candidates []Candidate) []Resolution {
	for _, c := range candidates {
		names.Resolve(d, c)
	}
	// Resolve again: only now are the claims of all candidates known.
	resolutions := make([]Resolution, len(candidates))
	for i, c := range candidates {
		resolutions[i] = names.Resolve(d, c)
	}
	return resolutions
}
