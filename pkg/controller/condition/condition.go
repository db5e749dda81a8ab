// Package condition sets the conditions of Tunnels, Clusters and Machines, writes them, and records an event for each
// transition. Its input is the conditions that a reconciler has derived; its output is at most one write for each
// object, and the events. It does not know how a condition is derived.
//
// The status of a Tunnel is patched with the resourceVersion that was read, because several reconcilers write it and it
// holds ids, names and counts. The conditions of Clusters and Machines use server-side apply: one field owner has one
// condition on each object.
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

// Unknown returns a condition with status Unknown and the reason in message.
func Unknown(kind, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonUnknown, Message: message}
}

// Counted returns a number with the singular or plural noun.
func Counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// Transition is a change of a condition that gets an event.
type Transition struct{ Condition, EventType, Reason, Message string }

// Set writes conditions into a status. It returns a transition for each condition whose status or reason has changed. A
// changed message alone is not a transition, nor is how a new Tunnel begins.
func Set(status *v1alpha1.TunnelStatus, generation int64, conditions ...metav1.Condition) []Transition {
	var events []Transition
	for _, c := range conditions {
		c.ObservedGeneration, c.Message = generation, Shorten(c.Message)
		was := apimeta.FindStatusCondition(status.Conditions, c.Type)
		if (was == nil && !begins(c)) || (was != nil && (was.Status != c.Status || was.Reason != c.Reason)) {
			events = append(events, Transition{c.Type, eventType(c), c.Reason, c.Message})
		}
		apimeta.SetStatusCondition(&status.Conditions, c)
	}
	return events
}

// begins reports whether the first value of a condition only states how every Tunnel begins: it is accepted, has a mode
// of its kubeconfig, and waits. An event for each of these would double the writes of a new Cluster. A warning, and the
// first success, are more than that.
func begins(c metav1.Condition) bool {
	if c.Status != metav1.ConditionTrue {
		return IsLive(c.Type) || eventType(c) == corev1.EventTypeNormal
	}
	return slices.Contains(
		[]string{v1alpha1.ConditionAccepted, v1alpha1.ConditionKubeconfigMode, v1alpha1.ConditionHostnameResolves}, c.Type,
	)
}

// Live lists the conditions that depend on live state. A Tunnel that is not served has none of them.
var Live = []string{v1alpha1.ConditionEnrolled, v1alpha1.ConditionTunnelReady, v1alpha1.ConditionAPIServerReachable}

// IsLive reports whether a condition depends on live state or summarizes such conditions.
func IsLive(kind string) bool {
	return kind == v1alpha1.ConditionReady || slices.Contains(Live, kind)
}

// eventType returns Warning only if a person must act. The conditions that Ready depends on have events of their own.
func eventType(c metav1.Condition) string {
	switch {
	case c.Status != metav1.ConditionFalse, c.Reason == v1alpha1.ReasonWaitingForSecret,
		c.Type == v1alpha1.ConditionReady, c.Type == v1alpha1.ConditionKubeconfigSwitched,
		c.Type == v1alpha1.ConditionHostnameResolves:
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// Shorten cuts a message at a character boundary.
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

// MaxMessage keeps a message readable and far below the limit of the apiserver (32 KiB), because messages quote user
// input.
const MaxMessage = 1024
