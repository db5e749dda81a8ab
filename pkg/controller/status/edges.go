package status

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// Bounds of reported data in a status. With 100 edges, an object stays far below its limit of 1.5 MiB.
const (
	maxReported = 256 // bytes of a text
	maxNames    = 64  // of a serving certificate, as many as in reports
	maxNameSize = 6 << 10
	// seenInterval is the precision of lastSeen of a connected edge, unless writeQueue delays the write.
	seenInterval = 5 * time.Minute
)

// revoke records the revocation of the edges that a Tunnel's spec lists, and ends their tokens. The edge of a Pod may
// have any bootstrap token of the Tunnel beside its ServiceAccount token, so its revocation ends all of them once.
func revoke(status *v1alpha1.TunnelStatus, revoked []string, now time.Time) {
	at := metav1.NewTime(now.Truncate(time.Second))
	for i := range status.Edges {
		edge := &status.Edges[i]
		node, _ := model.ParseNodeID(edge.NodeID)
		switch isRevoked := slices.Contains(revoked, node); {
		case !isRevoked:
			edge.RevokedAt, edge.CutAt = nil, nil // the revocation was reverted
			continue
		case edge.RevokedAt == nil:
			if edge.RevokedAt = &at; edge.Pod != nil {
				status.Tokens = nil
			}
		}
		edge.Form, edge.Version, edge.APIServer, edge.LastError = "", "", nil, ""
		status.Tokens = slices.DeleteFunc(slices.Clone(status.Tokens), func(t v1alpha1.TokenStatus) bool {
			return edge.TokenSHA256 != "" && t.SHA256 == edge.TokenSHA256
		})
	}
}

// revocationDue reports whether a revocation is missing from the status. It is urgent: a token must not outlive the
// revocation.
func revocationDue(tunnel *v1alpha1.Tunnel, now time.Time) bool {
	status := tunnel.Status.DeepCopy()
	revoke(status, tunnel.Spec.RevokedEdges, now)
	return !equality.Semantic.DeepEqual(*status, tunnel.Status)
}

// recordCut records the revoked edges for which all gateways report no tunnel and no other connection, with a complete
// record. Reports from the moment of the revocation do not count yet, because a tunnel may just be opening. The next
// check is a writeInterval later.
func recordCut(edges, before []v1alpha1.EdgeStatus, live reportview.Live, now time.Time) {
	at := metav1.NewTime(now.Truncate(time.Second))
	for i := range edges {
		edge := &edges[i]
		was := slices.ContainsFunc(
			before, func(b v1alpha1.EdgeStatus) bool { return b.NodeID == edge.NodeID && b.RevokedAt != nil },
		)
		switch {
		case edge.RevokedAt == nil || len(edge.Gateways) > 0 || connected(live, edge.NodeID):
			edge.CutAt = nil
		case edge.CutAt == nil && was && live.Known && len(live.Incomplete) == 0:
			edge.CutAt = &at
		}
	}
}

// connected reports whether a gateway has a connection of a node that is no tunnel: of an apiserver, or of the machines
// of a network.
func connected(live reportview.Live, nodeID string) bool {
	l := findEdge(live, nodeID)
	return l != nil && len(l.Connections) > 0
}

// cutTimes returns for how long each edge was revoked whose connections are newly recorded as closed, and when the
// revocations of the others were seen. seen has that of earlier ones; without it the time in the status counts, which
// has the precision of a second.
func cutTimes(
	seen map[string]time.Time, before, after []v1alpha1.EdgeStatus, now time.Time,
) (open map[string]time.Time, cut []time.Duration) {
	for i := range after {
		edge, was := &after[i], v1alpha1.EdgeStatus{}
		if j := slices.IndexFunc(before, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == edge.NodeID }); j >= 0 {
			was = before[j]
		}
		if edge.RevokedAt == nil || was.CutAt != nil {
			continue
		}
		at, known := seen[edge.NodeID]
		switch {
		case was.RevokedAt == nil:
			at = now
		case !known:
			at = edge.RevokedAt.Time
		}
		if edge.CutAt != nil {
			cut = append(cut, now.Sub(at))
			continue
		}
		if open == nil {
			open = map[string]time.Time{}
		}
		open[edge.NodeID] = at
	}
	return open, cut
}

// recordConnected records which nodes of a Tunnel for apiservers are connected. They have no tunnels that gateways
// report. While the live state is incomplete, a node stays as recorded.
func recordConnected(edges []v1alpha1.EdgeStatus, live reportview.Live) {
	for i := range edges {
		edge := &edges[i]
		l := findEdge(live, edge.NodeID)
		switch {
		case edge.RevokedAt != nil:
			edge.Connected = false
		case l != nil && l.Connected:
			edge.Connected = true
		case live.Known:
			edge.Connected = false
		}
	}
}

// mergeEdges merges the live state into the edges of a status. While the live state is incomplete, absent data stays as
// recorded. An edge without a record came with a moved Cluster, which leaves its status behind; its leaf ends after
// lifetime at the latest.
func mergeEdges(
	edges []v1alpha1.EdgeStatus, live reportview.Live, revoked []string, lifetime time.Duration, now time.Time,
) []v1alpha1.EdgeStatus {
	merged := make([]v1alpha1.EdgeStatus, 0, len(edges))
	recorded := map[string]bool{}
	for i := range edges {
		edge := *edges[i].DeepCopy()
		recorded[edge.NodeID] = true
		mergeEdge(&edge, findEdge(live, edge.NodeID), live, now)
		merged = append(merged, edge)
	}
	merged = records.CurrentEdges(merged, now)
	for i := range live.Edges {
		l := &live.Edges[i]
		nodeID := model.NodeID(l.Node)
		// The tunnels of a revoked edge are being cut. An edge without record, connection and tunnels has no state to record.
		// Recorded edges take precedence over the limit.
		if recorded[nodeID] || slices.Contains(revoked, l.Node) || (!l.Connected && l.Tunnels() == 0) ||
			len(merged) >= records.MaxEdges {
			continue
		}
		edge := v1alpha1.EdgeStatus{
			NodeID:              nodeID,
			EnrolledAt:          metav1.NewTime(now.Truncate(time.Second)),
			CertificateNotAfter: metav1.NewTime(now.Add(lifetime).Truncate(time.Second)),
		}
		mergeEdge(&edge, l, live, now)
		merged = append(merged, edge)
	}
	return merged
}

func findEdge(live reportview.Live, nodeID string) *reportview.Edge {
	for i := range live.Edges {
		if model.NodeID(live.Edges[i].Node) == nodeID {
			return &live.Edges[i]
		}
	}
	return nil
}

// mergeEdge merges the live state of one edge, which may be nil, into its status.
func mergeEdge(edge *v1alpha1.EdgeStatus, l *reportview.Edge, live reportview.Live, now time.Time) {
	had := len(edge.Gateways) > 0
	edge.Gateways = mergeGateways(edge.Gateways, l, live, edge.RevokedAt != nil)
	switch {
	case l != nil && (l.Connected || l.Tunnels() > 0), had && len(edge.Gateways) == 0:
		edge.LastSeen = lastSeen(edge.LastSeen, now, now)
	case l != nil && !l.Since.IsZero(): // when its connection ended
		edge.LastSeen = lastSeen(edge.LastSeen, l.Since, now)
	}
	switch {
	case edge.RevokedAt != nil:
	case l != nil && l.Report != nil:
		edge.Form, edge.Version = bounded(l.Report.GetForm(), 32), bounded(l.Report.GetVersion(), 64)
		edge.APIServer, edge.LastError = apiServerStatus(l.Report.GetApiServer(), edge.APIServer), bounded(
			l.Report.GetLastError(), maxReported,
		)
	case live.Known: // its state is no longer known
		edge.Form, edge.Version, edge.APIServer, edge.LastError = "", "", nil, ""
	}
}

// lastSeen returns the later of when an edge was seen before and when it was seen now. No time is in the future: one on
// record is of a clock that was corrected since.
func lastSeen(before *metav1.Time, at, now time.Time) *metav1.Time {
	if at.After(now) {
		at = now
	}
	seen := metav1.NewTime(at.Truncate(time.Second))
	if before == nil || before.Before(&seen) || before.After(now) {
		return &seen
	}
	return before
}

// mergeGateways returns the tunnels of an edge by gateway. A gateway that does not report now keeps its last known
// tunnels while it may only be silent. For a revoked edge it keeps them until it reports, because no other source can
// confirm that they are cut.
func mergeGateways(
	before []v1alpha1.EdgeGatewayStatus, l *reportview.Edge, live reportview.Live, revoked bool,
) []v1alpha1.EdgeGatewayStatus {
	var after []v1alpha1.EdgeGatewayStatus
	if l != nil {
		for name, count := range l.Gateways {
			if count > 0 {
				after = append(
					after,
					v1alpha1.EdgeGatewayStatus{Name: name, Tunnels: int32(min(count, 1<<16)), WorkersWithout: int32(l.Without[name])},
				)
			}
		}
	}
	if l != nil && revoked {
		for name, count := range l.Last { // it may have been silent since before the revocation
			after = append(after, v1alpha1.EdgeGatewayStatus{Name: name, Tunnels: int32(min(count, 1<<16))})
		}
	}
	for _, g := range before {
		told := (live.Known && !revoked) || slices.Contains(live.Gateways, g.Name) ||
			slices.ContainsFunc(after, func(a v1alpha1.EdgeGatewayStatus) bool { return a.Name == g.Name })
		if !told {
			after = append(after, g)
		}
	}
	slices.SortFunc(after, func(a, b v1alpha1.EdgeGatewayStatus) int { return strings.Compare(a.Name, b.Name) })
	return after
}

// apiServerStatus returns an edge's observation of the apiserver. While the apiserver does not answer, the certificate
// that was observed last stays.
func apiServerStatus(s *reportv1.APIServer, before *v1alpha1.EdgeAPIServerStatus) *v1alpha1.EdgeAPIServerStatus {
	if s == nil {
		return nil
	}
	out := &v1alpha1.EdgeAPIServerStatus{
		Address: bounded(s.GetAddress(), maxReported), Healthy: s.GetHealthy(),
		Reason: bounded(s.GetReason(), 64), Message: bounded(s.GetMessage(), maxReported),
		Version: bounded(s.GetVersion(), 64),
	}
	size := 0
	for _, name := range s.GetCertificateNames()[:min(len(s.GetCertificateNames()), maxNames)] {
		if name = bounded(name, maxReported); size+len(name) <= maxNameSize {
			size += len(name)
			out.CertificateNames = append(out.CertificateNames, name)
		}
	}
	if end := s.GetCertificateNotAfter(); end.IsValid() {
		at := metav1.NewTime(end.AsTime().Truncate(time.Second))
		out.CertificateNotAfter = &at
	}
	if !out.Healthy && len(out.CertificateNames) == 0 && before != nil {
		out.CertificateNames, out.CertificateNotAfter = before.CertificateNames, before.CertificateNotAfter
	}
	return out
}

// bounded makes a text of an edge fit for an object: it shortens it and replaces unprintable characters.
func bounded(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s[:min(len(s), 4*limit)])
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// sameButSeen reports whether two lists of edges differ only in when the edges were seen, by less than seenInterval.
func sameButSeen(before, after []v1alpha1.EdgeStatus, same func(a, b any) bool) bool {
	return slices.EqualFunc(before, after, func(a, b v1alpha1.EdgeStatus) bool {
		if (a.LastSeen == nil) != (b.LastSeen == nil) ||
			(a.LastSeen != nil && b.LastSeen.Sub(a.LastSeen.Time).Abs() >= seenInterval) {
			return false
		}
		a.LastSeen, b.LastSeen = nil, nil
		return same(a, b)
	})
}

// connections counts the edges that have tunnels and are not revoked, and their tunnels.
func connections(edges []observed.Edge) (connected, tunnels int32) {
	for i := range edges {
		if edges[i].HasTunnel() {
			connected++
			tunnels += int32(edges[i].Tunnels())
		}
	}
	return connected, tunnels
}

// edgeEvents returns the transitions of edges between two states of a Tunnel: revocations, and cut tunnels.
func edgeEvents(before, after []v1alpha1.EdgeStatus) (all []condition.Transition) {
	for i := range after {
		edge := &after[i]
		was := v1alpha1.EdgeStatus{}
		if j := slices.IndexFunc(before, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == edge.NodeID }); j >= 0 {
			was = before[j]
		}
		if edge.RevokedAt != nil && was.RevokedAt == nil {
			all = append(
				all,
				condition.Transition{
					Condition: "",
					EventType: corev1.EventTypeNormal,
					Reason:    v1alpha1.EventEdgeRevoked,
					Message:   "edge " + edge.NodeID + " is revoked",
				},
			)
		}
		if edge.CutAt != nil && was.CutAt == nil {
			all = append(
				all,
				condition.Transition{
					Condition: "",
					EventType: corev1.EventTypeNormal,
					Reason:    v1alpha1.EventEdgeCut,
					Message:   "all gateways have closed the tunnels of the revoked edge " + edge.NodeID,
				},
			)
		}
	}
	return all
}
