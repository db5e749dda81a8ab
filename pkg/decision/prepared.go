package decision

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// PreparedCandidate returns the claims of a Tunnel that waits for its Cluster: its hostname and its id, and no name
// that another claimant could have. The Tunnel of a network or of apiservers has no hostname.
func PreparedCandidate(tunnel *v1alpha1.Tunnel) Candidate {
	c := Candidate{
		Key:      model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name},
		Created:  tunnel.CreationTimestamp.Time,
		ID:       tunnel.ClaimedID(),
		Revoked:  tunnel.Spec.RevokedEdges,
		Held:     onRecord(tunnel.Namespace, tunnel.Status),
		Prepared: true,
	}
	switch {
	case tunnel.Spec.Network != "":
		c.Network = &NetworkFacts{Name: tunnel.Spec.Network} // it has no addresses before its RemoteNetwork exists
	case tunnel.Spec.EgressOf != "":
		c.Egress = true
	default:
		c.APIServer = model.Endpoint{Host: defaultAddress, Port: defaultPort} // never dialled
	}
	return c
}

// RecordedCandidate returns the record of a Tunnel that claims nothing.
func RecordedCandidate(tunnel *v1alpha1.Tunnel) Candidate {
	return Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, Created: tunnel.CreationTimestamp.Time,
		ID: tunnel.ClaimedID(), Held: onRecord(tunnel.Namespace, tunnel.Status),
	}
}

// Claimant returns the result of CandidateOf, or else the claims of a Tunnel that waits for its Cluster or that has an
// untunnelled mode. It returns false if the Tunnel claims nothing.
func Claimant(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, now time.Time) (Candidate, bool) {
	if c, ok := CandidateOf(cluster, tunnel); ok {
		return c, ok
	}
	if tunnel.Prepared(now) {
		return PreparedCandidate(tunnel), true
	}
	if !tunnel.OfCluster() {
		return Candidate{}, false
	}
	return UnservedCandidate(cluster, tunnel)
}

// UnservedCandidate returns the claims of a Cluster's Tunnel with an untunnelled mode: only its id, so that no other
// Tunnel can take it meanwhile. It returns false for any other Tunnel.
func UnservedCandidate(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (Candidate, bool) {
	if cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" || tunnel.Spec.Kubeconfig.Mode.Tunnelled() ||
		!metav1.IsControlledBy(tunnel, cluster) {
		return Candidate{}, false
	}
	return Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, Created: tunnel.CreationTimestamp.Time,
		ID: tunnel.ClaimedID(), Revoked: tunnel.Spec.RevokedEdges, Held: onRecord(tunnel.Namespace, tunnel.Status),
		Unserved: true,
	}, true
}
