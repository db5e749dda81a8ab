package source_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

// newSet returns a StatefulSet as in deploy/kubernetes.
func newSet(namespace string, replicas int32) *appsv1.StatefulSet {
	labels := map[string]string{"app": "gateway"}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gateway"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To(replicas), ServiceName: "gateway-peers", Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "gateway", Image: "fairlead-gateway",
					Ports: []corev1.ContainerPort{{Name: "apiserver", ContainerPort: 6443}, {Name: "public", ContainerPort: 8443}},
				}}},
			},
		},
	}
}

// namesOf returns the names of gateways in one line.
func namesOf(gateways []model.Gateway) string {
	var names []string
	for _, g := range gateways {
		names = append(names, g.Name)
	}
	return strings.Join(names, " ")
}

// TestGatewaysThatJoinOrLeave changes the number of replicas and how many are ready, in steps.
func TestGatewaysThatJoinOrLeave(t *testing.T) {
	set := newSet("fairlead-system", 2)
	var settled map[string]bool
	for _, step := range []struct {
		what                   string
		spec, replicas, ready  int32
		want, joining, leaving string
	}{
		{"the first ones", 2, 2, 0, "gateway-0 gateway-1", "", ""},
		{"all are ready", 2, 2, 2, "gateway-0 gateway-1", "", ""},
		{"one more is requested", 3, 2, 2, "gateway-0 gateway-1 gateway-2", "gateway-2", ""},
		{"it exists, and another one restarts", 3, 3, 1, "gateway-0 gateway-1 gateway-2", "gateway-2", ""},
		{"all are ready again", 3, 3, 3, "gateway-0 gateway-1 gateway-2", "", ""},
		{"one restarts", 3, 3, 2, "gateway-0 gateway-1 gateway-2", "", ""},
		{"one is to end", 2, 3, 3, "gateway-0 gateway-1 gateway-2", "", "gateway-2"},
		{"it drains", 2, 3, 2, "gateway-0 gateway-1 gateway-2", "", "gateway-2"},
		{"it has ended", 2, 2, 2, "gateway-0 gateway-1", "", ""},
		{"it is requested again", 3, 2, 2, "gateway-0 gateway-1 gateway-2", "gateway-2", ""},
	} {
		set.Spec.Replicas, set.Status.Replicas, set.Status.ReadyReplicas = ptr.To(step.spec), step.replicas, step.ready
		gateways, err := source.Gateways(set, "")
		if err != nil {
			t.Fatal(err)
		}
		settled = source.MarkJoining(set, gateways, settled)
		var joining, leaving []model.Gateway
		for _, g := range gateways {
			if g.Joining {
				joining = append(joining, g)
			}
			if g.Leaving {
				leaving = append(leaving, g)
			}
		}
		if got := namesOf(gateways); got != step.want {
			t.Errorf("%s: got %s, want %s", step.what, got, step.want)
		}
		if got := namesOf(joining); got != step.joining {
			t.Errorf("%s: %q joins, want %q", step.what, got, step.joining)
		}
		if got := namesOf(leaving); got != step.leaving {
			t.Errorf("%s: %q leaves, want %q", step.what, got, step.leaving)
		}
	}
}

// TestGatewaysThatAreReplacedDuringAStart: an xds-server that starts in an upgrade marks none.
func TestGatewaysThatAreReplacedDuringAStart(t *testing.T) {
	set := newSet("fairlead-system", 6)
	set.Status.Replicas, set.Status.ReadyReplicas = 6, 5
	set.Status.CurrentRevision, set.Status.UpdateRevision = "gateway-1", "gateway-2"
	gateways, err := source.Gateways(set, "")
	if err != nil {
		t.Fatal(err)
	}
	source.MarkJoining(set, gateways, nil)
	if i := slices.IndexFunc(gateways, func(g model.Gateway) bool { return g.Joining }); i >= 0 {
		t.Errorf("%s joins", gateways[i].Name)
	}
}

// TestGatewaysThatJoinDuringAStart: an xds-server that starts while gateways join must not let edges drop their tunnels
// to those that are there. In an outage it must not lead all edges to the few that are left.
func TestGatewaysThatJoinDuringAStart(t *testing.T) {
	for name, tc := range map[string]struct {
		requested, there, ready int32
		joining                 string
	}{
		"gateways are added":                 {requested: 6, there: 6, ready: 3, joining: "gateway-3 gateway-4 gateway-5"},
		"most of them are new":               {requested: 3, there: 3, ready: 1, joining: "gateway-1 gateway-2"},
		"a new installation":                 {requested: 4, there: 4},
		"an outage of most of them":          {requested: 40, there: 40, ready: 13},
		"gateways leave":                     {requested: 3, there: 6, ready: 3},
		"and one of the others is not ready": {requested: 3, there: 5, ready: 2, joining: "gateway-2"},
	} {
		t.Run(name, func(t *testing.T) {
			set := newSet("fairlead-system", tc.requested)
			set.Status.Replicas, set.Status.ReadyReplicas = tc.there, tc.ready
			var settled map[string]bool
			for range 2 {
				gateways, err := source.Gateways(set, "")
				if err != nil {
					t.Fatal(err)
				}
				settled = source.MarkJoining(set, gateways, settled)
				var joining []model.Gateway
				for _, g := range gateways {
					if g.Joining {
						joining = append(joining, g)
					}
				}
				if got := namesOf(joining); got != tc.joining {
					t.Errorf("%q join, want %q", got, tc.joining)
				}
			}
		})
	}
}

func TestGateways(t *testing.T) {
	tests := map[string]struct {
		in      func(set *appsv1.StatefulSet)
		address model.ReplicaAddress
		want    string
		wantErr []string
	}{
		"the requested number": {want: "gateway-0 gateway-1"},
		"one by default": {
			in:   func(s *appsv1.StatefulSet) { s.Spec.Replicas = nil },
			want: "gateway-0",
		},
		"terminating gateways": {
			in:   func(s *appsv1.StatefulSet) { s.Status.Replicas = 3 },
			want: "gateway-0 gateway-1 gateway-2",
		},
		"gateways that are not created yet": {
			in:   func(s *appsv1.StatefulSet) { s.Status.Replicas = 1 },
			want: "gateway-0 gateway-1",
		},
		"numbers that begin elsewhere": {
			in:   func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} },
			want: "gateway-5 gateway-6",
		},
		"the last ones while it is scaled to 0": {
			in:   func(s *appsv1.StatefulSet) { s.Spec.Replicas, s.Status.Replicas = ptr.To(int32(0)), 1 },
			want: "gateway-0",
		},
		"none": {
			in:      func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To(int32(0)) },
			wantErr: []string{"fairlead-system/gateway", "spec.replicas", "scale it"},
		},
		"more than edges have tunnels for": {
			in:      func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To(int32(101)) },
			wantErr: []string{"spec.replicas", "101", "100 at most"},
		},
		"numbers that are no gateway's": {
			in:      func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 99_999} },
			wantErr: []string{"gateway-100000"},
		},
		"numbers beyond all": {
			in:      func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1<<31 - 1} },
			wantErr: []string{"spec.ordinals.start"},
		},
		"another name": {
			in:      func(s *appsv1.StatefulSet) { s.Name = "door" },
			wantErr: []string{"door", "name it gateway"},
		},
		"no Service of its Pods": {
			in:      func(s *appsv1.StatefulSet) { s.Spec.ServiceName = "" },
			wantErr: []string{"spec.serviceName", "headless Service"},
		},
		"no port of the name": {
			in:      func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Ports = nil },
			wantErr: []string{"ports", "--public-listen"},
		},
		"an address for all is none for each": {
			address: "gateway.example.com:443",
			wantErr: []string{"{i}", "the same address"},
		},
		"an address of a replica without a port":  {address: "gateway-{i}.example.com", wantErr: []string{"host:port"}},
		"an address of a replica that is no name": {address: "gateway {i}:443", wantErr: []string{"gateway 0"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := newSet("fairlead-system", 2)
			if tc.in != nil {
				tc.in(set)
			}
			got, err := source.Gateways(set, tc.address)
			for _, want := range tc.wantErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want %q in it", err, want)
				}
			}
			if len(tc.wantErr) == 0 && err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tc.want, namesOf(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAddressesOfGateways(t *testing.T) {
	got, err := source.Gateways(newSet("fairlead-system", 2), "gw-{i}.example.com:4{i}43")
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Gateway{
		{
			Name:   "gateway-0",
			Peer:   model.Endpoint{Host: "gateway-0.gateway-peers.fairlead-system.svc", Port: 8443},
			Public: model.Endpoint{Host: "gw-0.example.com", Port: 4043},
		},
		{
			Name:   "gateway-1",
			Peer:   model.Endpoint{Host: "gateway-1.gateway-peers.fairlead-system.svc", Port: 8443},
			Public: model.Endpoint{Host: "gw-1.example.com", Port: 4143},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestGatewaysFollowTheirStatefulSet(t *testing.T) {
	b := newBed(t)
	log := &logtest.Journal{}
	b.config, b.log = source.KubeConfig{
		GatewaySet:     "gateway",
		ReplicaAddress: "gw-{i}.example.com:443",
	}, slog.New(
		slog.NewTextHandler(log, nil),
	)
	other := newSet(b.namespace, 7)
	other.Name = "other"
	if err := b.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{})
	if got := log.String(); !strings.Contains(got, "not found: apply") {
		t.Errorf("nothing says that the StatefulSet is missing:\n%s", got)
	}

	set := newSet(b.namespace, 2)
	if err := b.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	b.awaitGateways(t, "gateway-0 gateway-1")
	if got := b.gateways[1].Public.String(); got != "gw-1.example.com:443" {
		t.Errorf("edges reach it at %s", got)
	}
	b.update(t, set, func() { set.Spec.Replicas = ptr.To(int32(3)) })
	b.awaitGateways(t, "gateway-0 gateway-1 gateway-2")

	set.Status.Replicas = 3
	if err := b.Status().Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	b.update(t, set, func() { set.Spec.Replicas = ptr.To(int32(1)) })
	// Two Pods still exist. The next change shows that this was processed.
	b.update(t, set, func() { set.Spec.Template.Spec.Containers[0].Ports[1].ContainerPort = 9443 })
	b.awaitPort(t, 9443)
	b.awaitGateways(t, "gateway-0 gateway-1 gateway-2")
	set.Status.Replicas = 1
	if err := b.Status().Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	b.awaitGateways(t, "gateway-0")

	// Without the object the gateways remain: the log shows that this was processed.
	if err := b.Delete(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	awaitLines(t, log, 2, "not found: apply")
	b.awaitGateways(t, "gateway-0")
}

// TestZonesComeFromEndpointSlices: those of the headless Service of the StatefulSet alone, also when they change.
func TestZonesComeFromEndpointSlices(t *testing.T) {
	b := newBed(t)
	b.config = source.KubeConfig{GatewaySet: "gateway"}
	slice := func(service string, zones ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
		s.Namespace, s.Name = b.namespace, service+"-x"
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		for i, zone := range zones {
			e := discoveryv1.Endpoint{Hostname: ptr.To(fmt.Sprintf("gateway-%d", i)), Addresses: []string{"192.0.2.1"}}
			if zone != "" {
				e.Zone = ptr.To(zone)
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		return s
	}
	peers := slice("gateway-peers", "a", "")
	for _, object := range []client.Object{newSet(b.namespace, 2), peers, slice("other", "c", "c")} {
		if err := b.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	b.run(t)
	zones := func(want ...string) {
		t.Helper()
		b.awaitKnown(t, "in zones "+strings.Join(want, ", "), func() bool {
			return slices.EqualFunc(b.gateways, want, func(g model.Gateway, zone string) bool { return g.Zone == zone })
		})
	}
	zones("a", "")
	b.update(t, peers, func() { peers.Endpoints[1].Zone = ptr.To("b") })
	zones("a", "b")
	b.update(t, peers, func() { peers.Endpoints = peers.Endpoints[:1]; peers.Endpoints[0].Zone = ptr.To("c") })
	zones("c", "b") // the Pod of gateway-1 is being replaced
	b.update(t, peers, func() { peers.Endpoints[0].Zone = ptr.To("not a zone") })
	b.update(t, peers, func() {
		peers.Endpoints = append(peers.Endpoints, discoveryv1.Endpoint{
			Hostname: ptr.To("gateway-1"), Addresses: []string{"192.0.2.1"}, Zone: ptr.To("d"),
		})
	})
	zones("c", "d")
}

// awaitGateways takes updates until exactly these gateways are known.
func (b *bed) awaitGateways(t *testing.T, want string) {
	t.Helper()
	b.awaitKnown(t, want, func() bool { return namesOf(b.gateways) == want })
}

func (b *bed) awaitPort(t *testing.T, port uint16) {
	t.Helper()
	b.awaitKnown(
		t, fmt.Sprintf("port %d", port), func() bool { return len(b.gateways) > 0 && b.gateways[0].Peer.Port == port },
	)
}

func (b *bed) awaitKnown(t *testing.T, what string, known func() bool) {
	t.Helper()
	timeout := time.After(kubetest.Patience)
	for !known() {
		select {
		case u := <-b.updates:
			b.take(t, u)
		case <-timeout:
			t.Fatalf("the gateways are %q, want %s", namesOf(b.gateways), what)
		}
	}
}

// awaitLines waits until a log has a number of lines with a text.
func awaitLines(t *testing.T, log *logtest.Journal, times int, what string) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("%q is logged %d times", what, times), func() error {
		if got := log.Count(what); got < times {
			return fmt.Errorf("it was %d times:\n%s", got, log)
		}
		return nil
	})
}
