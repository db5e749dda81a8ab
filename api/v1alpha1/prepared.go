package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PreparedUntil is until when this Tunnel waits for its Cluster, which is to be moved here. It is false for a Tunnel
// that does not wait: one that has an owner, is being deleted, has no id or no tunnel, or names no time that can be
// read. A nil Tunnel does not wait.
func (t *Tunnel) PreparedUntil() (time.Time, bool) {
	if t == nil || t.Spec.ID == "" || !t.Spec.Kubeconfig.Mode.Tunnelled() ||
		!t.DeletionTimestamp.IsZero() || metav1.GetControllerOf(t) != nil {
		return time.Time{}, false
	}
	until, err := time.Parse(time.RFC3339, t.Annotations[PreparedAnnotation])
	return until, err == nil
}

// Prepared says whether edges of this Tunnel may enrol although its Cluster is not there: the Tunnel waits for it, has
// not waited for too long, and has its id.
func (t *Tunnel) Prepared(now time.Time) bool {
	until, ok := t.PreparedUntil()
	return ok && now.Before(until) && t.HeldID() != ""
}
