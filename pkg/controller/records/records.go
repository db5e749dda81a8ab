// Package records maintains what enrolment records: the edges and tokens in the status of a Tunnel, and the ConfigMap
// of ended tunnels. Its input is records and a time; its output is records that are bounded and current. It issues no
// token and no certificate, and writes nothing except the ConfigMap: callers write a changed status with the
// resourceVersion that they read.
package records

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// TokenIndex returns the index of the record with a hash; -1: there is none.
func TokenIndex(tokens []v1alpha1.TokenStatus, hash string) int {
	return slices.IndexFunc(tokens, func(t v1alpha1.TokenStatus) bool { return t.SHA256 == hash })
}

// EdgeOf finds an edge by its node name; nil: there is none.
func EdgeOf(edges []v1alpha1.EdgeStatus, node string) *v1alpha1.EdgeStatus {
	for i := range edges {
		if edges[i].NodeID == model.NodeID(node) {
			return &edges[i]
		}
	}
	return nil
}

// evidenceTime is how long the certificate that an edge observed counts after the edge is gone. It is longer than a
// machine restart and than the steps of LastSeen, so that a mode does not alternate with the health of apiservers and
// edges.
const evidenceTime = 15 * time.Minute

// CertificateNames returns the names in the serving certificates that edges observe now, or observed last if they
// cannot now. A revoked edge, or one that is away for longer than evidenceTime, does not count. An edge without a time
// does not either.
func CertificateNames(edges []v1alpha1.EdgeStatus, now time.Time) (all [][]string) {
	for i := range edges {
		edge := &edges[i]
		seen := edge.EnrolledAt
		if edge.LastSeen != nil {
			seen = *edge.LastSeen
		}
		here := len(edge.Gateways) > 0 || now.IsZero() || now.Sub(seen.Time) < evidenceTime
		if s := edge.APIServer; here && edge.RevokedAt == nil && s != nil && len(s.CertificateNames) > 0 {
			all = append(all, s.CertificateNames)
		}
	}
	return all
}

// ServedCluster returns the Cluster of a Tunnel for live state: an empty one for a prepared Tunnel, and nil for a
// Tunnel that does not belong to the Cluster. cluster is the result of objects.ClusterOf.
func ServedCluster(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, now time.Time) *clusterv1.Cluster {
	switch {
	case tunnel == nil || tunnel.ClaimedID() == "":
		return nil
	case cluster != nil && tunnel.Spec.Network != "":
		if served := tunnel.Status.Served; served == nil || served.ClusterUID != cluster.UID {
			return nil // it was decided for an earlier Cluster of the same name
		}
		return cluster
	case cluster != nil && metav1.IsControlledBy(tunnel, cluster):
		return cluster
	case tunnel.Prepared(now):
		return &clusterv1.Cluster{}
	}
	return nil
}

// CurrentEdges removes the edges that cannot come back, and beyond MaxEdges the ones that are away for longest.
func CurrentEdges(edges []v1alpha1.EdgeStatus, now time.Time) []v1alpha1.EdgeStatus {
	left := slices.DeleteFunc(
		slices.Clone(edges), func(e v1alpha1.EdgeStatus) bool { return now.After(e.CertificateNotAfter.Add(GraceTime)) },
	)
	if len(left) <= MaxEdges {
		return left
	}
	slices.SortStableFunc(left, func(a, b v1alpha1.EdgeStatus) int {
		return b.CertificateNotAfter.Compare(a.CertificateNotAfter.Time)
	})
	return left[:MaxEdges]
}

// PutEdge records that an edge has received a certificate. An empty host or Pod leaves the recorded one.
func PutEdge(edges []v1alpha1.EdgeStatus, edge v1alpha1.EdgeStatus) []v1alpha1.EdgeStatus {
	edges = slices.Clone(edges)
	i := slices.IndexFunc(edges, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == edge.NodeID })
	if i < 0 {
		return append(edges, edge)
	}
	edges[i].CertificateNotAfter = edge.CertificateNotAfter
	if edge.Host != "" {
		edges[i].Host = edge.Host
	}
	if edge.Pod != nil {
		edges[i].Pod = edge.Pod
	}
	return edges
}

// MaxEdges bounds the list of edges of one Tunnel.
const MaxEdges = 100
