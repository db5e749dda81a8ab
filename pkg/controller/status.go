package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// maxMessage keeps a message readable, and far below what the apiserver takes (32 KiB): it quotes what users wrote.
	maxMessage = 1024
	// maxEdges bounds the list of edges of one Tunnel.
	maxEdges = 100
)

// accepted is the condition that tells what became of a Tunnel's names and addresses.
func accepted(r decision.Resolution) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case r.Fatal != nil:
		c.Reason, c.Message = fatalReason(r.Fatal), r.Fatal.Error()
	case len(r.Refused) > 0:
		var all []string
		for _, refused := range r.Refused {
			all = append(all, refused.Error())
		}
		c.Reason, c.Message = v1alpha1.ReasonInvalidExtraName, strings.Join(all, "; ")
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAccepted
		c.Message = "served as " + strings.Join(r.Cluster.Names(), ", ")
	}
	return c
}

// notTunnelled is the condition of a Tunnel of which nothing is served, because of its mode or because the installation makes no
// tunnels at all.
func notTunnelled(mode v1alpha1.KubeconfigMode) metav1.Condition {
	if mode.Tunnelled() {
		return metav1.Condition{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTunnelsOff,
			Message: fmt.Sprintf("spec.kubeconfig.mode: %q: this installation makes no tunnels: choose http-proxy, https-proxy, socks5 or address, or run the controller with gateways", mode),
		}
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNotTunnelled,
		Message: fmt.Sprintf("no tunnel is made: mode %s leads through a network of your own", mode),
	}
}

func fatalReason(e *model.FieldError) string {
	switch {
	case e.Taken:
		return v1alpha1.ReasonNameTaken
	case e.Field == "spec.apiServer":
		return v1alpha1.ReasonInvalidAPIServer
	}
	return v1alpha1.ReasonInvalidName
}

// controlledByOther is the condition of a Tunnel that can't be adopted.
func controlledByOther(owner metav1.OwnerReference) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonControlledByOther,
		Message: fmt.Sprintf("metadata.ownerReferences: %q: controls this Tunnel: let it be controlled by its Cluster, or by nothing", owner.Kind+" "+owner.Name),
	}
}

// ready is the condition that tells where the kubeconfig leads; err is what writing it came to.
func (v *verdict) ready(o objects, leads kubeconfig.Way, err error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionKubeconfigReady, Status: metav1.ConditionFalse}
	switch {
	case o.kubeconfig == nil:
		c.Reason, c.Message = v1alpha1.ReasonWaitingForSecret, waitingForSecret(o)
	case errors.Is(err, kubeconfig.ErrInvalid):
		c.Reason, c.Message = v1alpha1.ReasonInvalidKubeconfig, err.Error()
	case errors.Is(err, errNotWritable):
		c.Reason = v1alpha1.ReasonNotWritable
		c.Message = fmt.Sprintf("Secret %s may not be changed: it is immutable, or an admission policy or webhook refuses the write, so the kubeconfig stays as it is: "+
			"let the controller patch it; an immutable one has to be deleted, and its control-plane provider writes it anew", o.key.Name+kubeconfig.Suffix)
	case v.stays:
		c.Reason, c.Message = v.refused.Reason, v.refused.Message+". The kubeconfig leads by this proxy and stays so meanwhile"
	case v.refused != nil:
		return *v.refused
	case v.record.Mode.Tunnelled():
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonRewritten, "the kubeconfig leads through the tunnel by "+leads.String()
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonRewritten, "the kubeconfig leads by "+leads.String()
	}
	return c
}

func waitingForSecret(o objects) string {
	return fmt.Sprintf("there is no Secret %s with the label cluster.x-k8s.io/cluster-name yet: the control-plane provider writes it", o.key.Name+kubeconfig.Suffix)
}

// transition is a change of a condition that somebody may want to know of.
type transition struct{ condition, eventType, reason, message string }

// setConditions writes conditions into a status, and returns an event for each whose status or reason is another than
// before. Messages alone make no event, nor does that a new Tunnel has no edge yet.
func setConditions(status *v1alpha1.TunnelStatus, generation int64, conditions ...metav1.Condition) []transition {
	var events []transition
	for _, c := range conditions {
		c.ObservedGeneration, c.Message = generation, shorten(c.Message)
		was := apimeta.FindStatusCondition(status.Conditions, c.Type)
		begins := was == nil && c.Status != metav1.ConditionTrue && isLive(c.Type)
		if (was == nil || was.Status != c.Status || was.Reason != c.Reason) && !begins {
			events = append(events, transition{c.Type, eventType(c), c.Reason, c.Message})
		}
		apimeta.SetStatusCondition(&status.Conditions, c)
	}
	return events
}

// liveConditions are about what is alive. A Tunnel that is not served has none of them.
var liveConditions = []string{v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable}

// isLive says whether a condition is about what is alive, or sums that up.
func isLive(kind string) bool {
	return kind == v1alpha1.ConditionReady || slices.Contains(liveConditions, kind)
}

// eventType is a warning only where a person has to do something. What is in the way of Ready has an event of its own.
func eventType(c metav1.Condition) string {
	switch {
	case c.Status != metav1.ConditionFalse, c.Reason == v1alpha1.ReasonWaitingForSecret,
		c.Type == v1alpha1.ConditionReady, c.Type == v1alpha1.ConditionKubeconfigSwitched, c.Type == v1alpha1.ConditionHostnameResolves:
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// shorten cuts a message between two characters.
func shorten(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	cut := maxMessage - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// liveEdges drops the edges that can't come back, and those that were away for longest where there are too many.
func liveEdges(edges []v1alpha1.EdgeStatus, now time.Time) []v1alpha1.EdgeStatus {
	left := slices.DeleteFunc(slices.Clone(edges), func(e v1alpha1.EdgeStatus) bool { return now.After(e.CertificateNotAfter.Add(graceTime)) })
	if len(left) <= maxEdges {
		return left
	}
	slices.SortStableFunc(left, func(a, b v1alpha1.EdgeStatus) int {
		return b.CertificateNotAfter.Compare(a.CertificateNotAfter.Time)
	})
	return left[:maxEdges]
}

// putEdge notes that an edge has got a certificate. A host that is not known leaves the one that is.
func putEdge(edges []v1alpha1.EdgeStatus, edge v1alpha1.EdgeStatus) []v1alpha1.EdgeStatus {
	edges = slices.Clone(edges)
	i := slices.IndexFunc(edges, func(e v1alpha1.EdgeStatus) bool { return e.NodeID == edge.NodeID })
	if i < 0 {
		return append(edges, edge)
	}
	edges[i].CertificateNotAfter = edge.CertificateNotAfter
	if edge.Host != "" {
		edges[i].Host = edge.Host
	}
	return edges
}
