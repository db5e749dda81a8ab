package source_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestTokensForBootReports(t *testing.T) {
	b := newBed(t)
	record := func(token string, left time.Duration) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{SHA256: enrol.HashToken(token), ExpiresAt: metav1.NewTime(time.Now().Add(left))}
	}
	_, tunnel := b.pair(t, "c1", "a")
	tunnel.Status.ID = tunnel.Spec.ID
	tunnel.Status.BootReportTokens = []v1alpha1.TokenStatus{
		record("report", time.Hour),
		record("older", time.Minute),
		record("expired", -time.Second),
	}
	edge := record("edge", time.Hour)
	edge.MaxUses = 2
	tunnel.Status.Tokens = []v1alpha1.TokenStatus{edge}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	_, thief := b.pair(t, "c2", "b")
	thief.Status.ID = "somebody-elses"
	thief.Status.BootReportTokens = []v1alpha1.TokenStatus{record("thief", time.Hour)}
	if err := b.Status().Update(t.Context(), thief); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": none}) // c2 has another id on record
	want := enrol.Grant{Tunnel: model.Key{Namespace: b.namespace, Name: "c1"}, ID: id("a")}
	for _, token := range []string{"report", "older"} {
		if grant, err := b.ReportToken(enrol.HashToken(token)); err != nil || grant != want {
			t.Errorf("token %q: got %v and %v, want %v", token, grant, err, want)
		}
	}
	for _, token := range []string{"expired", "edge", "thief", "unknown", ""} {
		if grant, err := b.ReportToken(enrol.HashToken(token)); !errors.Is(err, enrol.ErrUnknownToken) {
			t.Errorf("token %q: got %v and %v", token, grant, err)
		}
	}
	if grant, err := b.EdgeToken(enrol.HashToken("report"), ""); !errors.Is(err, enrol.ErrUnknownToken) {
		t.Errorf("an edge by a token for reports: got %v and %v", grant, err)
	}
}
