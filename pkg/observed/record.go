package observed

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Recorded returns the edges that the status of a Tunnel records, in its order, with their state at a time.
func Recorded(t *v1alpha1.Tunnel, now time.Time) []Edge {
	all := make([]Edge, 0, len(t.Status.Edges))
	for i := range t.Status.Edges {
		all = append(all, recorded(t, &t.Status.Edges[i], now))
	}
	return all
}

func recorded(t *v1alpha1.Tunnel, s *v1alpha1.EdgeStatus, now time.Time) Edge {
	node, _ := model.ParseNodeID(s.NodeID)
	e := Edge{
		Node: node, ID: t.HeldID(), Connected: connected(s), LastError: s.LastError,
		State: stateOf(t, s, node, now), Host: s.Host, Version: s.Version, Form: s.Form,
		Enrolled: s.EnrolledAt.UTC(), NotAfter: s.CertificateNotAfter.UTC(),
		LastSeen: orZero(s.LastSeen), RevokedAt: orZero(s.RevokedAt), CutAt: orZero(s.CutAt),
	}
	if a := s.APIServer; a != nil {
		e.APIServer = &APIServer{
			Address: a.Address, Healthy: a.Healthy, Reason: model.APIServerReason(a.Reason), Message: a.Message,
			Version: a.Version, CertificateNames: a.CertificateNames,
		}
		e.APIServer.CertificateEnd = orZero(a.CertificateNotAfter)
	}
	for _, g := range s.Gateways {
		one := Gateway{Name: g.Name, Tunnels: int(g.Tunnels), WorkersWithout: int(g.WorkersWithout)}
		e.Gateways = append(e.Gateways, one)
	}
	return e
}

func stateOf(t *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus, node string, now time.Time) State {
	ready := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionTunnelReady)
	switch {
	case e.RevokedAt != nil || IsRevoked(t, node):
		return Revoked
	case connected(e):
		return Connected
	case !now.Before(e.CertificateNotAfter.Time):
		return Expired
	case ready == nil || ready.Status == metav1.ConditionUnknown:
		return Unknown
	}
	return Away
}

// connected returns whether an edge is on record with a tunnel, or, beside an apiserver, as connected.
func connected(e *v1alpha1.EdgeStatus) bool { return len(e.Gateways) > 0 || e.Connected }

// IsRevoked returns whether a Tunnel's spec revokes an edge, which need not be on record.
func IsRevoked(t *v1alpha1.Tunnel, node string) bool {
	return slices.Contains(t.Spec.RevokedEdges, node)
}

// orZero returns a time, or zero for nil. It is UTC: metav1.Time decodes into the local time zone, and east of UTC a
// certificate without an end (RFC 5280: 99991231235959Z) would end in the year 10000, which JSON cannot encode.
func orZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
