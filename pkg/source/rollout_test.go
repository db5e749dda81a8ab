package source_test

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// TestTheRecordOfRollouts changes the record of a real kube-apiserver. What cannot be read changes nothing.
func TestTheRecordOfRollouts(t *testing.T) {
	b := newBed(t)
	var logged logtest.Journal
	b.log = slog.New(slog.NewTextHandler(&logged, nil))
	before, after := rollout.Settings{Version: "0.1"}.Profile(), rollout.Settings{Version: "0.2"}.Profile()
	text := func(r rollout.Record) map[string]string {
		text, err := r.Text()
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{rollout.RecordKey: text}
	}
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.namespace,
			Name:      v1alpha1.RolloutConfigMapName,
		}, Data: text(rollout.Record{Current: before}),
	}
	if err := b.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{})
	if got := <-b.rollouts; got == nil || got.Current != before { // it is there already: it comes before the first Replace
		t.Fatalf("at the start it is %+v", got)
	}
	await := func(what string, want func(*rollout.Record) bool) {
		t.Helper()
		for deadline := time.After(30 * time.Second); ; {
			select {
			case got := <-b.rollouts:
				if want(got) {
					return
				}
			case <-deadline:
				t.Fatalf("%s: nothing of the kind was published; logged is %s", what, logged.String())
			}
		}
	}
	b.update(t, record, func() { record.Data = map[string]string{rollout.RecordKey: "{"} })
	b.update(
		t, record, func() { record.Data = text(rollout.Record{Current: before, Next: after, Phase: rollout.PhaseRest}) },
	)
	await("a phase", func(r *rollout.Record) bool {
		if r == nil {
			t.Error("a record that cannot be read is published as none")
		}
		return r != nil && r.Next == after && r.Phase == rollout.PhaseRest
	})
	if err := b.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	await("none", func(r *rollout.Record) bool { return r == nil })
}
