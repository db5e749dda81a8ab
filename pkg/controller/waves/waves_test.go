package waves_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/waves"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
	"github.com/fairlead/fairlead/pkg/rollout"
)

const (
	namespace = "fairlead-system"
	user      = "system:serviceaccount:" + namespace + ":controller"
)

// kube has the deployed permissions of the controller.
var kube = kubetest.Server{Prepare: func(ctx context.Context, config *rest.Config) error {
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	return kubetest.Deploy(ctx, admin, "namespace.yaml", "controller.yaml")
}}

func TestMain(m *testing.M) { os.Exit(kube.Run(m)) }

var (
	before = rollout.Settings{Version: "0.1", Public: "a:1", Control: "b:1"}.Profile()
	after  = rollout.Settings{Version: "0.1", Public: "c:1", Control: "b:1"}.Profile()
)

// fleet is what two xds-servers announce about two edges.
type fleet struct {
	target  rollout.Profile
	refuses bool // edges reject the profile after
	record  *rollout.Record
	reads   int // how often all nodes were read
}

func (f *fleet) now(nodes bool) reportview.FleetNow {
	state := &reportv1.ProfileState{Target: string(f.target)}
	now := reportview.FleetNow{
		Known: true, Gateways: map[string]reportview.GatewayNow{"gateway-0": {Connected: true, Ready: true}},
		Edges:    map[reportview.EdgeRef]reportview.Edge{},
		Profiles: []*reportv1.ProfileState{state, {Target: string(f.target)}},
	}
	if !nodes {
		now.Gateways = nil
		return now
	}
	f.reads++
	for _, name := range []string{"a", "b"} {
		n := rollout.Node{Name: "edge-" + name, ID: name}
		now.Edges[reportview.EdgeRef{Node: n.Name, ID: n.ID}] = reportview.Edge{
			Connected: true,
			Gateways:  map[string]int{"gateway-0": 2},
		}
		state.Total, state.Answered = state.GetTotal()+1, state.GetAnswered()+1
		if f.record == nil || !f.record.IsMember(n) && f.record.Phase != rollout.PhaseRest {
			continue
		}
		served := &reportv1.NodeProfile{Node: n.Name, TunnelId: n.ID, Profile: f.record.Of(n).ID(), Applied: true}
		if f.refuses && f.record.Of(n) == after {
			served.Applied, served.Refusal = false, "no such host"
		}
		state.Nodes = append(state.Nodes, served)
	}
	return now
}

// bed is a reconciler with the controller's permissions.
type bed struct {
	*waves.Reconciler
	admin  client.Client
	fleet  fleet
	events *events.FakeRecorder
	clock  time.Time
}

func newBed(t *testing.T) *bed {
	t.Helper()
	admin, err := kubetest.NewClient(kube.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(kube.Config(t))
	config.Impersonate.UserName = user
	limited, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{admin: admin, events: events.NewFakeRecorder(16), clock: time.Now(), fleet: fleet{target: before}}
	b.Reconciler = waves.New(waves.Config{
		Namespace: namespace, Client: limited, Live: limited, Recorder: b.events, Log: slog.New(slog.DiscardHandler),
		Fleet: b.fleet.now, Soak: time.Minute,
	})
	t.Cleanup(func() { _ = client.IgnoreNotFound(admin.Delete(context.Background(), b.object())) })
	return b
}

func (b *bed) object() *corev1.ConfigMap {
	o := &corev1.ConfigMap{}
	o.Namespace, o.Name = namespace, v1alpha1.RolloutConfigMapName
	return o
}

// passes reconciles once a second for some time, and the fleet follows the record.
func (b *bed) passes(t *testing.T, d time.Duration) *rollout.Record {
	t.Helper()
	for end := b.clock.Add(d); b.clock.Before(end); b.clock = b.clock.Add(time.Second) {
		if err := b.Reconcile(t.Context(), b.clock); err != nil {
			t.Fatal(err)
		}
		b.fleet.record = b.record(t)
	}
	return b.fleet.record
}

// record reads the record from the apiserver.
func (b *bed) record(t *testing.T) *rollout.Record {
	t.Helper()
	o := b.object()
	if err := b.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	r, err := rollout.ParseRecord(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (b *bed) event(t *testing.T, parts ...string) {
	t.Helper()
	select {
	case e := <-b.events.Events:
		for _, part := range parts {
			if !strings.Contains(e, part) {
				t.Errorf("the event %q has no %q", e, part)
			}
		}
	default:
		t.Errorf("there is no event %q", parts)
	}
}

func TestTheRecordFollowsTheFleet(t *testing.T) {
	b := newBed(t)
	if r := b.passes(t, 2*time.Second); r == nil || r.Current != before || r.Phase != rollout.PhaseNone {
		t.Fatalf("a new installation has %+v", r)
	}
	b.fleet.target = after
	if r := b.passes(t, 2*time.Second); r.Phase != rollout.PhaseFirst || len(r.Nodes) != 1 || r.Current != before ||
		r.Next != after {
		t.Fatalf("after a change there is %+v", r)
	}
	b.event(t, "Normal", v1alpha1.EventRolloutStarted, after.ID())
	if r := b.passes(t, time.Minute); r.Phase != rollout.PhaseRest {
		t.Fatalf("after a minute there is %+v", r)
	}
	b.event(t, v1alpha1.EventRolloutStarted, "all nodes")
	if r := b.passes(t, 2*time.Minute); r.Phase != rollout.PhaseNone || r.Current != after {
		t.Fatalf("after all there is %+v", r)
	}
	b.event(t, v1alpha1.EventRolloutEnded)
}

func TestARejectionStopsARolloutUntilItIsRetried(t *testing.T) {
	b := newBed(t)
	b.passes(t, 2*time.Second)
	b.fleet.target, b.fleet.refuses = after, true
	r := b.passes(t, time.Minute)
	if r.Phase != rollout.PhaseStopped || !strings.Contains(r.Reason, "edge-") ||
		!strings.Contains(r.Reason, "no such host") {
		t.Fatalf("there is %+v", r)
	}
	b.event(t, v1alpha1.EventRolloutStarted)
	b.event(t, "Warning", v1alpha1.EventRolloutStopped, "no such host", before.ID())
	b.fleet.refuses = false
	o := b.object()
	o.Annotations = map[string]string{rollout.RetryAnnotation: "1"}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"1"}}}`, rollout.RetryAnnotation)
	if err := b.admin.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
	if r := b.passes(t, 11*time.Second); r.Phase != rollout.PhaseFirst {
		t.Fatalf("after the annotation there is %+v", r)
	}
}

// TestARecordIsNotOverwritten has a record that was changed since it was read, and one that cannot be read.
func TestARecordIsNotOverwritten(t *testing.T) {
	b := newBed(t)
	b.passes(t, 2*time.Second)
	o := b.object()
	if err := b.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	text, err := rollout.Record{Current: before, Reason: "written by another leader", Since: b.clock}.Text()
	if err != nil {
		t.Fatal(err)
	}
	o.Data = map[string]string{rollout.RecordKey: text}
	if err := b.admin.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b.fleet.target = after
	if err := b.Reconcile(t.Context(), b.clock); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if r := b.record(t); r.Reason != "written by another leader" {
		t.Errorf("it is %+v", r)
	}
	o.Data = map[string]string{rollout.RecordKey: "{"}
	if err := b.admin.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconcile(t.Context(), b.clock.Add(time.Minute)); err == nil || apierrors.IsConflict(err) {
		t.Errorf("got %v for a record that cannot be read", err)
	}
	if err := b.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil || o.Data[rollout.RecordKey] != "{" {
		t.Errorf("it is overwritten: %v (%v)", o.Data, err)
	}
}

// TestWithoutARolloutTheNodesAreNotRead: with 10,000 edges that would cost more each second than all other work.
func TestWithoutARolloutTheNodesAreNotRead(t *testing.T) {
	b := newBed(t)
	b.passes(t, 2*time.Second)
	reads := b.fleet.reads
	b.passes(t, time.Minute)
	if b.fleet.reads != reads {
		t.Errorf("they were read %d times in a minute", b.fleet.reads-reads)
	}
	b.fleet.target, b.fleet.refuses = after, true
	if r := b.passes(t, time.Minute); r.Phase != rollout.PhaseStopped || b.fleet.reads == reads {
		t.Fatalf("a rollout reads them %d times: %+v", b.fleet.reads-reads, r)
	}
	reads = b.fleet.reads
	b.passes(t, time.Minute)
	if b.fleet.reads != reads {
		t.Errorf("after it has stopped they were read %d times in a minute", b.fleet.reads-reads)
	}
}
