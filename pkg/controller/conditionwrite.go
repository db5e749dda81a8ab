package controller

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// statusWriter is what a status and the events of its transitions are written by.
type statusWriter struct {
	client   client.Client
	recorder events.EventRecorder
	log      *slog.Logger
}

// reportStatus sets conditions in a status, writes it in one patch if it differs from that of the Tunnel, and then records an
// event for each transition. It returns the Tunnel as it is then. A Tunnel that has changed since it was read is a conflict.
func reportStatus(ctx context.Context, w statusWriter, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, conditions ...metav1.Condition) (*v1alpha1.Tunnel, error) {
	transitions := setConditions(status, tunnel.Generation, conditions...)
	if equality.Semantic.DeepEqual(*status, tunnel.Status) {
		return tunnel, nil
	}
	after, err := patchStatus(ctx, w.client, tunnel, *status)
	if err != nil {
		return nil, err
	}
	tell(w.recorder, w.log, tunnel, transitions)
	return after, nil
}

// patchStatus writes a Tunnel's status and returns the Tunnel as it is then. A Tunnel that has changed since it was read is a
// conflict.
func patchStatus(ctx context.Context, to client.Client, tunnel *v1alpha1.Tunnel, status v1alpha1.TunnelStatus) (*v1alpha1.Tunnel, error) {
	want := tunnel.DeepCopy()
	want.Status = status
	return want, wrap("writing status of Tunnel", to.Status().Patch(ctx, want, lockedPatch(tunnel)))
}
