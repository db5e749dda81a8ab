package signer

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestAnEnrolmentIsAnEventAfterItsCertificate fails to sign once, after the edge was recorded. Only the attempt that
// signs has an event, and a later certificate of the edge has none.
func TestAnEnrolmentIsAnEventAfterItsCertificate(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	tunnel.Status.ID = tunnel.Spec.ID
	tunnel.Status.Tokens = []v1alpha1.TokenStatus{{
		SHA256: enrol.HashToken("token"), MaxUses: 1, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
	}}
	api, recorder, now := controllertest.FakeAPI(t, cluster, tunnel), events.NewFakeRecorder(4), time.Now()
	r := &Reconciler{Deps: reconciler.Deps{
		Config: controllertest.Config(), Client: api, Live: api, Now: func() time.Time { return now },
		Recorder: recorder, Log: slog.New(slog.DiscardHandler),
	}}
	wanted := func() *request {
		return &request{
			subject:   model.Subject{Role: model.RoleEdge, Node: "edge-new", ID: tunnel.Spec.ID},
			tunnel:    model.Key{Namespace: "prod", Name: "c1"},
			tokenHash: enrol.HashToken("token"), notAfter: now.Add(time.Hour), created: now.Truncate(time.Second),
		}
	}
	attempt := func(q *request, signs bool) {
		t.Helper()
		if err := r.admitEdge(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		if n := len(recorder.Events); n != 0 {
			t.Fatalf("there are %d events before the certificate, the first is %q", n, <-recorder.Events)
		}
		if signs {
			r.recordEnrolment(*q)
		}
	}
	q := wanted()
	attempt(q, false)
	now = now.Add(2 * time.Second)
	q.enrols = nil
	attempt(q, true) // the same request again
	select {
	case e := <-recorder.Events:
		if !strings.Contains(e, v1alpha1.EventEdgeEnrolled) || !strings.Contains(e, "edge-new") {
			t.Errorf("the event is %q", e)
		}
	default:
		t.Error("there is no event after the certificate")
	}
	for len(recorder.Events) > 0 { // of the Cluster
		<-recorder.Events
	}
	now = now.Add(time.Minute)
	attempt(wanted(), true)
	if len(recorder.Events) != 0 {
		t.Errorf("a later certificate has the event %q", <-recorder.Events)
	}
}
