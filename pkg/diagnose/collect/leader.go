package collect

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/retry"
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

// clockError is by how much the clock of this machine may be wrong. By more than that, certificates fail first.
const clockError = 10 * time.Minute

// ReadLeader returns the state of the leader election in the namespace of an installation. If only the clock of this
// machine, now, says whether the Lease has expired, it is read once more when its holder should have renewed it, which
// takes a few seconds.
func ReadLeader(ctx context.Context, objects client.Reader, namespace string, now time.Time) Leader {
	l, lasts := readLeader(ctx, objects, namespace)
	age := now.Sub(l.Renewed)
	l.Alive = l.Holder != "" && age < lasts+clockSlack
	if l.Holder == "" || -clockSlack < age && age < lasts+clockSlack || age.Abs() > clockError {
		return l
	}
	if retry.Sleep(ctx, lasts/5) != nil { // a leader renews its Lease every seventh of that: see cmd/controller
		return l
	}
	if again, _ := readLeader(ctx, objects, namespace); again.Known {
		again.Alive = again.Holder != "" && !again.Renewed.Equal(l.Renewed)
		return again
	}
	return l
}

// clockSlack is how much the clock of this machine may differ from the leader's without a second look.
const clockSlack = 3 * time.Second

// readLeader reads the Lease, and for how long it lasts without a renewal.
func readLeader(ctx context.Context, objects client.Reader, namespace string) (l Leader, lasts time.Duration) {
	var lease coordinationv1.Lease
	err := objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: LeaseName}, &lease)
	l.Known = err == nil || apierrors.IsNotFound(err)
	if err != nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return l, 0
	}
	if lease.Spec.HolderIdentity != nil {
		l.Holder = *lease.Spec.HolderIdentity
	}
	l.Renewed = lease.Spec.RenewTime.Time
	return l, time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}
