package collect

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LeaseName is the leader election's Lease of cmd/controller.
const LeaseName = "fairlead-controller"

// Leader is the state of the controllers' leader election.
type Leader struct {
	Known   bool   // the Lease could be read
	Alive   bool   // a controller leads now
	Holder  string // the current or last leader
	Renewed time.Time
}

// ReadLeader returns the state of the leader election in the namespace of an installation.
func ReadLeader(ctx context.Context, objects client.Reader, namespace string, now time.Time) (l Leader) {
	var lease coordinationv1.Lease
	err := objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: LeaseName}, &lease)
	l.Known = err == nil || apierrors.IsNotFound(err)
	if err != nil {
		return l
	}
	if lease.Spec.HolderIdentity != nil {
		l.Holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.RenewTime != nil && lease.Spec.LeaseDurationSeconds != nil {
		l.Renewed = lease.Spec.RenewTime.Time
		// The clock of this machine may differ a little from the leader's.
		grace := time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second + 3*time.Second
		l.Alive = l.Holder != "" && now.Sub(l.Renewed) < grace
	}
	return l
}
