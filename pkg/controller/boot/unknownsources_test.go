package boot

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// bootAt returns the report of a machine that has a hostname and one address.
func bootAt(host, bootID, address string, received time.Time) report.Boot {
	return report.Boot{Host: host, Received: received, Report: &reportv1.BootReport{
		BootId: bootID, State: reportv1.BootState_BOOT_STATE_SUCCEEDED, Machine: &reportv1.Machine{
			Hostname:  host,
			Addresses: []string{address},
		},
	}}
}

func machineAt(name, uid, address string, made time.Time) *clusterv1.Machine {
	m := kubetest.Machine("prod", "c1", name)
	m.UID, m.CreationTimestamp = types.UID(uid), metav1.NewTime(made)
	m.Status.Addresses = []clusterv1.MachineAddress{{Type: clusterv1.MachineInternalIP, Address: address}}
	return m
}

// TestAReportStaysWithItsMachine deletes a Machine soon after its boot, while its report still exists.
func TestAReportStaysWithItsMachine(t *testing.T) {
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := made.Add(time.Minute)
	r := &Reconciler{}
	key := client.ObjectKey{Namespace: "prod", Name: "c1"}
	boots := []report.Boot{bootAt("h", "b1", "10.0.0.1", now)}
	one, other := machineAt("m1", "u1", "10.0.0.1", made), machineAt("m2", "u2", "10.0.0.2", made)
	if by, left := r.assign(key, []*clusterv1.Machine{one, other}, boots); len(left) != 0 || by["m1"].Report == nil {
		t.Fatalf("assigned %v, left %v", by, left)
	}
	if by, left := r.assign(key, []*clusterv1.Machine{other}, boots); len(left) != 0 || len(by) != 0 {
		t.Errorf("after its Machine is gone: assigned %v, left %v", by, left)
	}
	// The address is reused by another Machine, which is older than the report.
	other.Status.Addresses[0].Address = "10.0.0.1"
	if by, left := r.assign(key, []*clusterv1.Machine{other}, boots); len(left) != 0 || len(by) != 0 {
		t.Errorf("it is another Machine's: %v, left %v", by, left)
	}
	// A Machine with the same name has another UID.
	if by, _ := r.assign(key, []*clusterv1.Machine{machineAt("m1", "u3", "10.0.0.1", made)}, boots); len(by) != 0 {
		t.Errorf("it is that of a Machine of the same name: %v", by)
	}
	boots = []report.Boot{bootAt("h", "b2", "10.0.0.1", now.Add(time.Minute))}
	if by, left := r.assign(key, []*clusterv1.Machine{other}, boots); len(left) != 0 ||
		by["m2"].Report.GetBootId() != "b2" {
		t.Errorf("another boot is not that Machine's: %v, left %v", by, left)
	}
	if r.assign(key, nil, nil); len(r.recall(key).matched) != 0 {
		t.Error("reports that are gone are remembered")
	}
}

// TestUnknownSourcesAreReportedTogether lets the holder of a token invent machines without limit.
func TestUnknownSourcesAreReportedTogether(t *testing.T) {
	recorder := events.NewFakeRecorder(2000)
	r := &Reconciler{Deps: reconciler.Deps{Recorder: recorder, Log: slog.New(slog.DiscardHandler)}}
	cluster := kubetest.Cluster("prod", "c1")
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var sent []string
	invented := 0
	for now := begin; now.Before(begin.Add(time.Hour)); now = now.Add(time.Minute) {
		var left []unmatched
		for n := max(0, invented-120); n < invented+12; n++ {
			host := fmt.Sprintf("made-up-%04d", n)
			left = append(left, unmatched{boot: bootAt(host, "b", "10.0.0.1", now)})
		}
		invented += 12
		next := r.reportUnknownSources(cluster, left, now)
		for len(recorder.Events) > 0 {
			sent = append(sent, <-recorder.Events)
		}
		if next <= 0 || next > unknownSourcesInterval {
			t.Fatalf("again after %s", next)
		}
	}
	if most := int(time.Hour / unknownSourcesInterval); len(sent) == 0 || len(sent) > most {
		t.Fatalf("%d events in an hour", len(sent))
	}
	if !strings.Contains(sent[0], "12 machines report how they boot") || !strings.Contains(sent[0], "made-up-0000") {
		t.Errorf("event %q", sent[0])
	}
	if slices.ContainsFunc(sent, func(e string) bool { return len(e) > 1200 }) {
		t.Error("an event is too long")
	}
}

// TestAClockThatGoesBackProlongsNoWait sets the apiserver's clock back by an hour after an event.
func TestAClockThatGoesBackProlongsNoWait(t *testing.T) {
	recorder := events.NewFakeRecorder(2)
	r := &Reconciler{Deps: reconciler.Deps{Recorder: recorder, Log: slog.New(slog.DiscardHandler)}}
	cluster, now := kubetest.Cluster("prod", "c1"), time.Date(2026, 1, 1, 9, 0, 0, 0, time.UTC)
	first := []unmatched{{boot: bootAt("first", "b", "10.0.0.1", now)}}
	r.tooSoon(client.ObjectKeyFromObject(cluster), now)
	r.reportUnknownSources(cluster, first, now)
	r.reportUnknownSources(cluster, first, now.Add(unknownSourceTime))

	now = now.Add(-time.Hour)
	if wait := r.tooSoon(client.ObjectKeyFromObject(cluster), now); wait != 0 {
		t.Errorf("the Machines are reconciled after %s", wait)
	}
	second := append(first, unmatched{boot: bootAt("second", "b", "10.0.0.2", now)})
	if next := r.reportUnknownSources(cluster, second, now); next != unknownSourceTime {
		t.Errorf("the next event is due after %s, want %s", next, unknownSourceTime)
	}
}
