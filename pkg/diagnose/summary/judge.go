package summary

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/observed"
)

const (
	// newFor is how long a Cluster counts as new: missing machines are not a fault yet.
	newFor = time.Hour
	// controllerTime is how long the controller may take to process a new object.
	controllerTime = time.Minute
	// recordTime is after how long without a word the record of a connected edge proves nothing. The controller writes
	// that edges are connected every 5 minutes, but with at most a twentieth of its writes: with 20,000 Tunnels every
	// 45 minutes at the 150 writes per second of --status-writes, and every 2 h 15 min at 50.
	recordTime = 3 * time.Hour
	// leafSoon is when a connected edge should have renewed long ago: leaves live for a day and are renewed when eight
	// hours are left.
	leafSoon = 2 * time.Hour
	// serverSoon is how long before its end an apiserver's certificate requires attention: kubeadm's live for a year, and
	// only an upgrade or a person renews them.
	serverSoon = 14 * 24 * time.Hour
	// kubeconfigSoon is the same for the kubeconfig, which control-plane providers renew when half a year is left.
	kubeconfigSoon = 14 * 24 * time.Hour
)

// Reasons of notices that are no reasons of conditions.
const (
	ReasonNoTunnelObject    = "NoTunnelObject"
	ReasonNoCluster         = v1alpha1.ReasonNoCluster
	ReasonNotLookedAt       = "NotLookedAt"
	ReasonPaused            = "Paused"
	ReasonDeleting          = "Deleting"
	ReasonEdgeAway          = "EdgeAway"
	ReasonEdgeExpired       = "EdgeExpired"
	ReasonEdgeTrouble       = "EdgeTrouble"
	ReasonEdgeNotCut        = "EdgeNotCut"
	ReasonWorkersWithout    = "WorkersWithoutTunnel"
	ReasonCertificateEnds   = "CertificateEnds"
	ReasonCertificateEnded  = "CertificateEnded"
	ReasonAPIServerUnwell   = "APIServerUnhealthy"
	ReasonWaitingForCluster = v1alpha1.ReasonWaitingForCluster
)

func (r *Row) note(weight Health, reason string, since time.Time, format string, args ...any) {
	r.Warnings = append(r.Warnings, Notice{weight, reason, fmt.Sprintf(format, args...), since})
}

// judge finds the faults and sums them up.
func (r *Row) judge(cluster *clusterv1.Cluster, t *v1alpha1.Tunnel, now time.Time) {
	r.judgeObjects(cluster, t)
	r.judgeConditions(t, now)
	r.judgeEdges(now)
	r.judgeExpiries(now)
	r.conclude()
}

// conclude sorts the notices: the worst decides.
func (r *Row) conclude() {
	slices.SortStableFunc(r.Warnings, func(a, b Notice) int { return ranks[a.Weight] - ranks[b.Weight] })
	r.Health = OK
	if len(r.Warnings) > 0 {
		r.Health = r.Warnings[0].Weight
	}
}

func (r *Row) judgeObjects(cluster *clusterv1.Cluster, t *v1alpha1.Tunnel) {
	if cluster == nil {
		if until, ok := t.Annotations[v1alpha1.PreparedAnnotation]; ok {
			r.note(
				Waiting, ReasonWaitingForCluster, t.CreationTimestamp.Time,
				"it was prepared for a Cluster that will be moved here, and waits for it until %s", until,
			)
		} else {
			r.note(Warning, ReasonNoCluster, time.Time{}, "Cluster %s not found: delete the Tunnel", t.Name)
		}
	}
	if r.Deleting {
		r.note(Warning, ReasonDeleting, time.Time{}, "it is being deleted; the tunnel remains until the object is gone")
	}
	if r.Paused {
		r.note(
			Warning,
			ReasonPaused,
			time.Time{},
			"it is paused: nothing but status is written until spec.paused of the Cluster, or the annotation "+
				"cluster.x-k8s.io/paused, is gone",
		)
	}
}

// about lists the conditions that report whether clients reach the apiserver, in the order of a request. Of the last
// three only the first False one is reported, because the others follow from it.
var about = []string{
	v1alpha1.ConditionAccepted, v1alpha1.ConditionKubeconfigReady, v1alpha1.ConditionEnrolled,
	v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable,
}

func (r *Row) judgeConditions(t *v1alpha1.Tunnel, now time.Time) {
	if !r.judgeAccepted("Tunnel", t, now) {
		return
	}
	accepted := meta.FindStatusCondition(r.Conditions, v1alpha1.ConditionAccepted)
	if accepted.Reason == v1alpha1.ReasonWaitingForCluster && r.has(ReasonWaitingForCluster) {
		return // nothing is served before its Cluster is here, whatever the other conditions are
	}
	kinds, told := about, false
	if accepted.Reason == v1alpha1.ReasonNotTunnelled {
		kinds = about[:2]
	}
	for i, kind := range kinds {
		c := meta.FindStatusCondition(t.Status.Conditions, kind)
		switch {
		case c == nil || c.Status == metav1.ConditionTrue || i >= 2 && told:
		case c.Status == metav1.ConditionFalse:
			told = told || i >= 2 || kind == v1alpha1.ConditionAccepted && !v1alpha1.ServedInPart(c.Reason)
			r.note(weigh(c, t, now), c.Reason, c.LastTransitionTime.Time, "%s", c.Message)
		default:
			r.note(Unknown, c.Reason, c.LastTransitionTime.Time, "%s: %s", kind, c.Message)
		}
	}
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionTunnelReady); c != nil &&
		c.Reason == v1alpha1.ReasonPartlyConnected {
		r.note(Warning, c.Reason, c.LastTransitionTime.Time, "%s", c.Message)
	}
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionCopiesReady); c != nil &&
		c.Status == metav1.ConditionFalse {
		r.note(Warning, c.Reason, c.LastTransitionTime.Time, "%s", c.Message)
	}
}

// judgeAccepted judges whether the controller has reconciled an object with the conditions of the row. It returns false
// if there are no conditions yet.
func (r *Row) judgeAccepted(kind string, o metav1.Object, now time.Time) bool {
	accepted := meta.FindStatusCondition(r.Conditions, v1alpha1.ConditionAccepted)
	created := o.GetCreationTimestamp().Time
	switch {
	case accepted == nil && now.Sub(created) > controllerTime && !r.Paused:
		r.note(
			Unknown, ReasonNotLookedAt, created, "the controller has not reconciled the %s: check that it runs", kind,
		)
		return false
	case accepted == nil:
		r.note(Waiting, ReasonNotLookedAt, created, "the controller has not reconciled the %s yet", kind)
		return false
	case accepted.ObservedGeneration < o.GetGeneration() && !r.Paused:
		r.note(
			Warning, ReasonNotLookedAt, time.Time{}, "the controller has not reconciled the newest spec yet: check that it runs",
		)
	}
	return true
}

// weigh returns how severe it is that a condition is False.
func weigh(c *metav1.Condition, t *v1alpha1.Tunnel, now time.Time) Health {
	fresh := now.Sub(t.CreationTimestamp.Time) < newFor
	switch {
	case c.Type == v1alpha1.ConditionAccepted && v1alpha1.ServedInPart(c.Reason):
		return Warning
	case fresh && c.Reason == v1alpha1.ReasonWaitingForSecret,
		fresh && c.Reason == v1alpha1.ReasonNoEdge && len(t.Status.Edges) == 0,
		c.Reason == v1alpha1.ReasonWaitingForCluster:
		return Waiting
	}
	return Broken
}

func (r *Row) judgeEdges(now time.Time) {
	for i := range r.Edges {
		e := &r.Edges[i]
		name := e.Node
		if e.Host != "" {
			name += " (" + e.Host + ")"
		}
		switch {
		case e.Revoked():
			if !e.Cut() && len(e.Gateways) > 0 {
				r.note(
					Warning, ReasonEdgeNotCut, e.RevokedAt,
					"edge %s is revoked, but not all gateways have confirmed that its tunnels are closed", name,
				)
			}
			continue
		case e.State == observed.Away && r.Connected > 0:
			text := "edge %s has no tunnel, the other edges have: see its log, or revoke it if it will not return"
			if r.Mode == ModeEgress {
				text = "%s beside an apiserver is not connected, others are: see its log, or revoke it if it will not return"
			}
			r.note(Warning, ReasonEdgeAway, e.LastSeen, text, name)
		case e.HasTunnel() && e.Health() == observed.Unhealthy && r.healthy():
			r.note(
				Warning, ReasonAPIServerUnwell, time.Time{}, "edge %s does not reach its apiserver: %s", name, e.APIServer.Message,
			)
		}
		if e.HasTunnel() && !r.has(ReasonNotLookedAt) && !e.LastSeen.IsZero() && now.Sub(e.LastSeen) > recordTime {
			r.note(
				Unknown, ReasonNotLookedAt, e.LastSeen, "the last record of edge %s is of %s: check that the controller and the "+
					"xds-servers run", name, e.LastSeen.UTC().Format(time.RFC3339),
			)
		}
		if e.LastError != "" {
			r.note(Warning, ReasonEdgeTrouble, time.Time{}, "edge %s reports: %s", name, e.LastError)
		}
		if without := e.WorkersWithout(); without != "" && !r.has(v1alpha1.ReasonPartlyConnected) {
			r.note(
				Warning, ReasonWorkersWithout, time.Time{}, "edge %s has no tunnel on %s, which the gateways repair", name, without,
			)
		}
	}
}

// healthy reports whether an edge reaches the apiserver. Then another edge that does not is only part of the state.
func (r *Row) healthy() bool {
	return slices.ContainsFunc(
		r.Edges, func(e observed.Edge) bool { return e.HasTunnel() && e.Health() == observed.Healthy },
	)
}

func (r *Row) has(reason string) bool {
	return slices.ContainsFunc(r.Warnings, func(n Notice) bool { return n.Reason == reason })
}

func (r *Row) judgeExpiries(now time.Time) {
	for _, e := range r.Expiries {
		left := e.NotAfter.Sub(now)
		node, leaf := strings.CutPrefix(e.Of, "edge ")
		soon, cure := kubeconfigSoon, "its control-plane provider should have renewed it: see the Cluster's control plane"
		switch {
		case leaf:
			r.judgeLeaf(node, left)
			continue
		case e.Of == "apiserver":
			soon, cure = serverSoon, "renew it, such as by `kubeadm certs renew apiserver`, or by an upgrade of the control "+
				"plane"
		case strings.HasPrefix(e.Of, "copy "):
			soon, cure = 0, "see the condition CopiesReady"
		}
		switch {
		case left <= 0:
			r.note(
				Broken, ReasonCertificateEnded, e.NotAfter, "the certificate of the %s expired at %s: %s", e.Of,
				e.NotAfter.UTC().Format(time.RFC3339), cure,
			)
		case left < soon:
			r.note(
				Warning, ReasonCertificateEnds, time.Time{}, "the certificate of the %s expires at %s: %s", e.Of,
				e.NotAfter.UTC().Format(time.RFC3339), cure,
			)
		}
	}
}

// judgeLeaf judges the certificate of an edge.
func (r *Row) judgeLeaf(node string, left time.Duration) {
	i := slices.IndexFunc(r.Edges, func(e observed.Edge) bool { return e.Node == node })
	e := &r.Edges[i]
	short := e.NotAfter.Sub(e.Enrolled) < 3*leafSoon // leaves of this installation may live for less than a day
	switch {
	case left <= 0:
		weight := Warning
		if r.Connected == 0 {
			weight = Broken
		}
		r.note(
			weight,
			ReasonEdgeExpired,
			e.NotAfter,
			"the certificate of edge %s has expired: the edge renews it with its key when it reaches the gateways, for 90 "+
				"days; see its log and its clock",
			node,
		)
	case left < leafSoon && e.HasTunnel() && !short:
		r.note(
			Warning, ReasonCertificateEnds, time.Time{},
			"the certificate of edge %s expires soon and was not renewed: see its log and the log of the controller", node,
		)
	}
}

// withoutTunnel judges a Cluster that has opted in and has no Tunnel.
func withoutTunnel(c *clusterv1.Cluster, now time.Time) Row {
	r := Row{
		Namespace: c.Namespace,
		Cluster:   c.Name,
		Created:   c.CreationTimestamp.Time,
		Paused:    isPaused(c),
		Deleting:  !c.DeletionTimestamp.IsZero(),
	}
	told := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterConditionTunnelReady)
	switch {
	case told != nil && told.Reason == v1alpha1.ReasonNameTaken:
		r.note(Broken, told.Reason, told.LastTransitionTime.Time, "%s", told.Message)
	case r.Paused:
		r.note(Waiting, ReasonPaused, time.Time{}, "it is paused: its Tunnel is created when it is unpaused")
	case r.Deleting:
		r.note(Warning, ReasonDeleting, time.Time{}, "it is being deleted, and its Tunnel is gone")
	case now.Sub(c.CreationTimestamp.Time) > controllerTime:
		r.note(
			Broken, ReasonNoTunnelObject, c.CreationTimestamp.Time,
			"it has opted in, but has no Tunnel: check that the controller runs",
		)
	default:
		r.note(Waiting, ReasonNoTunnelObject, c.CreationTimestamp.Time, "its Tunnel is not created yet")
	}
	r.conclude()
	return r
}
