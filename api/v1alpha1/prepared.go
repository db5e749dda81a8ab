package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PreparedUntil returns until when this Tunnel waits for a Cluster that will be moved to this management cluster. It
// returns false for a Tunnel that does not wait: a nil Tunnel, one that has a controlling owner, is being deleted, has
// no id or an untunnelled mode, or whose annotation does not contain a valid time.
func (t *Tunnel) PreparedUntil() (time.Time, bool) {
	if t == nil || t.Spec.ID == "" || !t.Spec.Kubeconfig.Mode.Tunnelled() ||
		!t.DeletionTimestamp.IsZero() || metav1.GetControllerOf(t) != nil {
		return time.Time{}, false
	}
	until, err := time.Parse(time.RFC3339, t.Annotations[PreparedAnnotation])
	return until, err == nil
}

// Prepared reports whether edges of this Tunnel may enrol although its Cluster does not exist: the Tunnel waits for
// it, the time of PreparedUntil has not passed, and the Tunnel holds its id.
func (t *Tunnel) Prepared(now time.Time) bool {
	until, ok := t.PreparedUntil()
	return ok && now.Before(until) && t.HeldID() != ""
}
