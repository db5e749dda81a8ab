package decision

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// PreparedCandidate is what a Tunnel claims that waits for its Cluster: its hostname and its id, and nothing that
// others might have.
func PreparedCandidate(tunnel *v1alpha1.Tunnel) Candidate {
	return Candidate{
		Key:       model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name},
		Created:   tunnel.CreationTimestamp.Time,
		ID:        tunnel.ClaimedID(),
		APIServer: model.Endpoint{Host: defaultAddress, Port: defaultPort}, // nobody dials it
		Revoked:   tunnel.Spec.RevokedEdges,
		Held:      onRecord(tunnel.Status),
		Prepared:  true,
	}
}

// RecordedCandidate is what is on record for a Tunnel that claims nothing.
func RecordedCandidate(tunnel *v1alpha1.Tunnel) Candidate {
	return Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, Created: tunnel.CreationTimestamp.Time,
		ID: tunnel.ClaimedID(), Held: onRecord(tunnel.Status),
	}
}

// Claimant is CandidateOf, or what a Tunnel claims that waits for its Cluster or makes no tunnel.
func Claimant(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, now time.Time) (Candidate, bool) {
	if c, ok := CandidateOf(cluster, tunnel); ok {
		return c, ok
	}
	if tunnel.Prepared(now) {
		return PreparedCandidate(tunnel), true
	}
	return UnservedCandidate(cluster, tunnel)
}

// UnservedCandidate is what a Tunnel of a Cluster claims whose kubeconfig leads through a network of the user's own:
// its id, so that no other Tunnel gets it meanwhile, and nothing else.
func UnservedCandidate(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (Candidate, bool) {
	if cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" || tunnel.Spec.Kubeconfig.Mode.Tunnelled() ||
		!metav1.IsControlledBy(tunnel, cluster) {
		return Candidate{}, false
	}
	return Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, Created: tunnel.CreationTimestamp.Time,
		ID: tunnel.ClaimedID(), Revoked: tunnel.Spec.RevokedEdges, Held: onRecord(tunnel.Status), Unserved: true,
	}, true
}
