// Package condition sets the conditions of Tunnels, Clusters and Machines, writes them, and records an event for each
// transition. In go the conditions that a reconciler has found, out come at most one write for each object, and its
// events. It does not know how a condition comes about.
//
// The status of a Tunnel is patched with the resourceVersion that was read, because several reconcilers write it and
// it holds ids, names and counts. The conditions of Clusters and Machines are applied on the server side: one field
// owner has one condition on each.
package condition

import (
	"fmt"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Unknown returns a condition of which nothing is known, for the reason that message gives.
func Unknown(kind, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonUnknown, Message: message}
}

// Counted is a number and what there is of it, in singular or plural.
func Counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// Transition is a change of a condition that is worth an event.
type Transition struct{ Condition, EventType, Reason, Message string }

// Set writes conditions into a status, and returns an event for each whose status or reason is another than
// before. Messages alone make no event, nor does that a new Tunnel has no edge yet.
func Set(status *v1alpha1.TunnelStatus, generation int64, conditions ...metav1.Condition) []Transition {
	var events []Transition
	for _, c := range conditions {
		c.ObservedGeneration, c.Message = generation, Shorten(c.Message)
		was := apimeta.FindStatusCondition(status.Conditions, c.Type)
		begins := was == nil && c.Status != metav1.ConditionTrue && IsLive(c.Type)
		if (was == nil || was.Status != c.Status || was.Reason != c.Reason) && !begins {
			events = append(events, Transition{c.Type, eventType(c), c.Reason, c.Message})
		}
		apimeta.SetStatusCondition(&status.Conditions, c)
	}
	return events
}

// Live are about what is alive. A Tunnel that is not served has none of them.
var Live = []string{v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable}

// IsLive says whether a condition is about what is alive, or sums that up.
func IsLive(kind string) bool {
	return kind == v1alpha1.ConditionReady || slices.Contains(Live, kind)
}

// eventType is a warning only where a person has to do something. What is in the way of Ready has an event of its own.
func eventType(c metav1.Condition) string {
	switch {
	case c.Status != metav1.ConditionFalse, c.Reason == v1alpha1.ReasonWaitingForSecret,
		c.Type == v1alpha1.ConditionReady, c.Type == v1alpha1.ConditionKubeconfigSwitched,
		c.Type == v1alpha1.ConditionHostnameResolves:
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// Shorten cuts a message between two characters.
func Shorten(s string) string {
	if len(s) <= MaxMessage {
		return s
	}
	cut := MaxMessage - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// MaxMessage keeps a message readable, and far below what the apiserver takes (32 KiB): it quotes what users wrote.
const MaxMessage = 1024
