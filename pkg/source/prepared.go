package source

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// PreparedUntil is until when a Tunnel waits for its Cluster, which is to be moved here. It is false for one that does not: one
// that belongs to somebody, is being deleted, has no id or no tunnel, or says no time that can be read.
func PreparedUntil(tunnel *v1alpha1.Tunnel) (time.Time, bool) {
	if tunnel == nil || tunnel.ClaimedID() == "" || !tunnel.Spec.Kubeconfig.Mode.Tunnelled() ||
		!tunnel.DeletionTimestamp.IsZero() || metav1.GetControllerOf(tunnel) != nil {
		return time.Time{}, false
	}
	until, err := time.Parse(time.RFC3339, tunnel.Annotations[v1alpha1.PreparedAnnotation])
	return until, err == nil
}

// Prepared says whether the edges of a Tunnel may enrol though its Cluster is not there: it waits for it, has not waited for
// too long, and the controller has recorded that the id is its own.
func Prepared(tunnel *v1alpha1.Tunnel, now time.Time) bool {
	until, ok := PreparedUntil(tunnel)
	return ok && now.Before(until) && tunnel.HeldID() != ""
}

// PreparedCandidate is what a Tunnel claims that waits for its Cluster: its hostname and its id, and nothing that others might
// have.
func PreparedCandidate(tunnel *v1alpha1.Tunnel) model.Candidate {
	return model.Candidate{
		Key:       model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name},
		Created:   tunnel.CreationTimestamp.Time,
		ID:        tunnel.ClaimedID(),
		APIServer: model.Endpoint{Host: defaultAddress, Port: defaultPort}, // nobody dials it
		Revoked:   tunnel.Spec.RevokedEdges,
		Held:      held(tunnel.Status),
		Recorded:  tunnel.HeldID() != "",
		Prepared:  true,
	}
}

// Claimant is Candidate, or what a Tunnel claims that waits for its Cluster or makes no tunnel.
func Claimant(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, now time.Time) (model.Candidate, bool) {
	if c, ok := Candidate(cluster, tunnel); ok {
		return c, ok
	}
	if Prepared(tunnel, now) {
		return PreparedCandidate(tunnel), true
	}
	return UnservedCandidate(cluster, tunnel)
}

// UnservedCandidate is what a Tunnel of a Cluster claims whose kubeconfig leads through a network of the user's own: its id, so that no
// other Tunnel gets it meanwhile, and nothing else.
func UnservedCandidate(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) (model.Candidate, bool) {
	if cluster == nil || tunnel == nil || tunnel.ClaimedID() == "" || tunnel.Spec.Kubeconfig.Mode.Tunnelled() || !metav1.IsControlledBy(tunnel, cluster) {
		return model.Candidate{}, false
	}
	return model.Candidate{
		Key: model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, Created: tunnel.CreationTimestamp.Time,
		ID: tunnel.ClaimedID(), Revoked: tunnel.Spec.RevokedEdges, Held: held(tunnel.Status), Recorded: tunnel.HeldID() != "", Unserved: true,
	}, true
}
