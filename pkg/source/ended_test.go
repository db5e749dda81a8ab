package source_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
)

func TestTheRecordOfEndedTunnels(t *testing.T) {
	b := newBed(t)
	var said logtest.Journal
	b.log = slog.New(slog.NewTextHandler(&said, nil))
	until := time.Date(2027, time.March, 1, 12, 0, 0, 0, time.UTC)
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: v1alpha1.EndedTunnelsConfigMapName},
		Data:       map[string]string{id("a"): until.Format(time.RFC3339)},
	}
	if err := b.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{})
	b.awaitEnded(t, map[string]time.Time{id("a"): until})

	b.update(t, record, func() {
		record.Data = map[string]string{id("b"): until.Format(time.RFC3339), "Short": "x", id("c"): "tomorrow"}
	})
	forever := time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)
	b.awaitEnded(t, map[string]time.Time{id("b"): until, id("c"): forever})
	b.update(t, record, func() { delete(record.Data, id("b")) })
	b.awaitEnded(t, map[string]time.Time{id("c"): forever})
	for _, bad := range []string{"Short", id("c")} {
		if got := strings.Count(said.String(), "id="+bad); got != 1 {
			t.Errorf("%s was logged %d times, want once:\n%s", bad, got, said.String())
		}
	}

	if err := b.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	b.awaitEnded(t, map[string]time.Time{})
}

// TestAnIDThatLivesAgainHasNotEndedWhenEdgesAreLetIn: its edges would take the denial for final.
func TestAnIDThatLivesAgainHasNotEndedWhenEdgesAreLetIn(t *testing.T) {
	b := newBed(t)
	until := time.Date(2027, time.March, 1, 12, 0, 0, 0, time.UTC)
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: v1alpha1.EndedTunnelsConfigMapName},
		Data:       map[string]string{id("a"): until.Format(time.RFC3339), id("b"): until.Format(time.RFC3339)},
	}
	if err := b.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	b.pair(t, "c1", "a")
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	if diff := cmp.Diff(map[string]time.Time{id("b"): until}, b.ended); diff != "" {
		t.Error(diff)
	}
}

// TestTheRecordIsPublishedOnlyForItsIDs: a revocation waits while the record is compared with all Tunnels.
func TestTheRecordIsPublishedOnlyForItsIDs(t *testing.T) {
	const begins = "defgh"
	b := newBed(t)
	until := time.Date(2027, time.March, 1, 12, 0, 0, 0, time.UTC)
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: v1alpha1.EndedTunnelsConfigMapName},
		Data:       map[string]string{},
	}
	for _, begin := range begins {
		record.Data[id(string(begin))] = until.Format(time.RFC3339)
	}
	if err := b.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	b.updates = make(chan update) // the source goes on when the test takes what it publishes
	b.run(t)
	b.first(t, map[string][]string{})
	takeUntil := func(done func(records int) bool) (records int) {
		t.Helper()
		for !done(records) {
			u := b.next(t)
			if u.ended != nil {
				records++
			}
			b.take(t, u)
		}
		return records
	}
	takeUntil(func(records int) bool { return records == 1 }) // the informer's first event

	b.pair(t, "c1", "b")
	b.pair(t, "c2", "c")
	if n := takeUntil(func(int) bool { return b.served["c1"] != nil && b.served["c2"] != nil }); n > 0 {
		t.Errorf("the record was published %d times for Tunnels that it does not have", n)
	}

	var tunnels []*v1alpha1.Tunnel
	for _, begin := range begins {
		_, tunnel := b.pair(t, "lives-"+string(begin), string(begin))
		tunnels = append(tunnels, tunnel)
	}
	takeUntil(func(int) bool { return len(b.ended) == 0 })
	for _, tunnel := range tunnels {
		b.delete(t, tunnel)
	}
	kubetest.Eventually(t, "the other Tunnels waiting until the first is published", func() error {
		if n := b.Queued(); n < len(tunnels)-1 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	if n := takeUntil(func(int) bool { return len(b.ended) == len(tunnels) }); n > 2 {
		t.Errorf("the record was published %d times for %d Tunnels that ended together", n, len(tunnels))
	}
}

func TestWithoutARecordNothingHasEnded(t *testing.T) {
	b := newBed(t)
	other := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "another"}, Data: map[string]string{id("a"): "x"},
	}
	if err := b.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{})
	b.awaitEnded(t, map[string]time.Time{})
}

// awaitEnded takes updates until exactly these tunnels have ended.
func (b *bed) awaitEnded(t *testing.T, want map[string]time.Time) {
	t.Helper()
	timeout := time.After(kubetest.Patience)
	for {
		diff := cmp.Diff(want, b.ended)
		if diff == "" {
			return
		}
		select {
		case u := <-b.updates:
			b.take(t, u)
		case <-timeout:
			t.Fatalf("not published:\n%s", diff)
		}
	}
}
