package condition

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
)

// Writer holds the dependencies to write a status and the events of its transitions.
type Writer struct {
	Client   client.Client
	Recorder events.EventRecorder
	Log      *slog.Logger
}

// Report sets conditions in a status, patches the Tunnel once if its status differs, and then records an event for each
// transition. It returns the Tunnel as written. A Tunnel that has changed since it was read is a conflict.
func Report(
	ctx context.Context, w Writer, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, conditions ...metav1.Condition,
) (*v1alpha1.Tunnel, error) {
	transitions := Set(status, tunnel.Generation, conditions...)
	if equality.Semantic.DeepEqual(*status, tunnel.Status) {
		return tunnel, nil
	}
	after, err := Patch(ctx, w.Client, tunnel, *status)
	if err != nil {
		return nil, err
	}
	Record(w.Recorder, w.Log, tunnel, transitions)
	return after, nil
}

// Patch writes a Tunnel's status and returns the Tunnel as written. A Tunnel that has changed since it was read is a
// conflict.
func Patch(
	ctx context.Context, to client.Client, tunnel *v1alpha1.Tunnel, status v1alpha1.TunnelStatus,
) (*v1alpha1.Tunnel, error) {
	want := tunnel.DeepCopy()
	want.Status = status
	return want, objects.Wrap("writing status of Tunnel", to.Status().Patch(ctx, want, objects.LockedPatch(tunnel)))
}
