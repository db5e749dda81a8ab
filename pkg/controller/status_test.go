package controller

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestEventsAreForTransitionsOnly(t *testing.T) {
	status := &v1alpha1.TunnelStatus{}
	good := accepted(decision.Resolution{Cluster: model.WorkloadCluster{Hostname: hostname}})
	refused := &model.FieldError{Field: "spec.extraNames[0]", Value: "x", Problem: "has no dot", Cure: "remove it"}
	bad := accepted(decision.Resolution{Refused: []*model.FieldError{refused}})
	worse := accepted(decision.Resolution{Refused: []*model.FieldError{refused, refused}})
	steps := []struct {
		condition metav1.Condition
		want      string // type of the event, or empty
	}{{good, corev1.EventTypeNormal}, {good, ""}, {bad, corev1.EventTypeWarning}, {worse, ""}, {good, corev1.EventTypeNormal}}
	for i, step := range steps {
		got := ""
		if events := setConditions(status, int64(i), step.condition); len(events) > 0 {
			got = events[0].eventType
		}
		if got != step.want {
			t.Errorf("step %d: event %q, want %q", i, got, step.want)
		}
		if c := status.Conditions[0]; c.ObservedGeneration != int64(i) || c.Message != step.condition.Message {
			t.Errorf("step %d: %+v", i, c)
		}
	}
}

func TestAMessageStaysShort(t *testing.T) {
	long := shorten(strings.Repeat("ä", 40000))
	if len(long) > maxMessage || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid: %v", len(long), utf8.ValidString(long))
	}
}

func TestEdgesThatCanNotComeBackAreForgotten(t *testing.T) {
	at := time.Now()
	edge := func(node string, notAfter time.Time) v1alpha1.EdgeStatus {
		return v1alpha1.EdgeStatus{NodeID: node, CertificateNotAfter: metav1.NewTime(notAfter)}
	}
	edges := []v1alpha1.EdgeStatus{edge("CN=gone", at.Add(-91*24*time.Hour)), edge("CN=away", at.Add(-89*24*time.Hour)), edge("CN=here", at.Add(time.Hour))}
	if got := liveEdges(edges, at); len(got) != 2 || got[0].NodeID != "CN=away" {
		t.Errorf("left: %v", got)
	}
	for range 2 * maxEdges {
		edges = append(edges, edge(model.NodeID(model.NewNodeName()), at.Add(time.Minute)))
	}
	if got := liveEdges(edges, at); len(got) != maxEdges || got[0].NodeID != "CN=here" {
		t.Errorf("%d left, the first is %s", len(got), got[0].NodeID)
	}
}
