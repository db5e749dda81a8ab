package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/internal/traces"
)

// Reconciliations tracks the running reconciliations of this process, and receives reports of stuck informers.
var Reconciliations = heartbeat.New()

// Alive returns an error that names each reconciliation that does not end and each stuck informer, for a liveness
// probe. A reconciliation that fails because an apiserver is down does end, and is retried.
func Alive(*http.Request) error { return Reconciliations.Stuck(time.Now()) }

// Traced creates a span for each reconciliation. Requests to the apiserver are its children, see traces.Transport.
type Traced struct {
	Name string // of the controller
	reconcile.Reconciler
}

// Reconcile implements reconcile.Reconciler.
func (t Traced) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	defer Reconciliations.Begin("reconciling "+t.Name, heartbeat.CallLimit)()
	ctx, span := traces.Begin(ctx, "reconcile", "controller", t.Name, "namespace", request.Namespace, "name", request.Name)
	result, err := t.Reconciler.Reconcile(ctx, request)
	said := "done"
	switch {
	case err != nil:
		said = "error"
	case result.RequeueAfter > 0:
		said = "again"
		span.SetAttributes(attribute.Float64("fairlead.after_seconds", result.RequeueAfter.Seconds()))
	}
	span.SetAttributes(attribute.String("fairlead.result", said))
	EndSpan(span, err)
	return result, err
}

// EndSpan ends a span. Of an apiserver error it records only the reason: a policy that denied a write may quote the
// content of a Secret.
func EndSpan(span trace.Span, err error) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		err = fmt.Errorf("the apiserver answered %s", status.Status().Reason)
	}
	traces.End(span, err)
}
