package controller

import (
	"fmt"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func unknownCondition(kind, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonUnknown, Message: message}
}

// counted is a number and what there is of it, in singular or plural.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
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

// maxMessage keeps a message readable, and far below what the apiserver takes (32 KiB): it quotes what users wrote.
const maxMessage = 1024
