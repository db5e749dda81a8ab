package tunnel

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestEventsAreForTransitionsOnly(t *testing.T) {
	status := &v1alpha1.TunnelStatus{}
	good := accepted(decision.Resolution{Cluster: model.WorkloadCluster{Hostname: controllertest.Hostname}})
	refused := &model.FieldError{Field: "spec.extraNames[0]", Value: "x", Problem: "has no dot", Cure: "remove it"}
	bad := accepted(decision.Resolution{Refused: []*model.FieldError{refused}})
	worse := accepted(decision.Resolution{Refused: []*model.FieldError{refused, refused}})
	steps := []struct {
		condition metav1.Condition
		want      string // type of the event, or empty
	}{
		{good, ""}, // how every Tunnel begins
		{good, ""},
		{bad, corev1.EventTypeWarning},
		{worse, ""},
		{good, corev1.EventTypeNormal},
	}
	for i, step := range steps {
		got := ""
		if events := condition.Set(status, int64(i), step.condition); len(events) > 0 {
			got = events[0].EventType
		}
		if got != step.want {
			t.Errorf("step %d: event %q, want %q", i, got, step.want)
		}
		if c := status.Conditions[0]; c.ObservedGeneration != int64(i) || c.Message != step.condition.Message {
			t.Errorf("step %d: %+v", i, c)
		}
	}
}
