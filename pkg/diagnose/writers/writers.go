// Package writers says who has written an object, and when, from its managed fields. It does not know what was written.
package writers

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Last returns the last writer of an object, and when it wrote; an empty name: that is not known.
func Last(o client.Object) (name string, at time.Time) {
	var last metav1.ManagedFieldsEntry
	for _, f := range o.GetManagedFields() {
		if f.Time != nil && (last.Time == nil || last.Time.Before(f.Time)) {
			last = f
		}
	}
	if last.Time == nil {
		return "", time.Time{}
	}
	return last.Manager, last.Time.Time
}

// Changed returns when an object's spec was last written.
func Changed(o client.Object) time.Time {
	at := o.GetCreationTimestamp().Time
	for _, f := range o.GetManagedFields() {
		if f.Subresource == "" && f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}
