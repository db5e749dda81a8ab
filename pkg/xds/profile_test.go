package xds_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// changed returns inst with other settings. All of them affect gateways, and the public address affects edges.
var changed = func() model.Installation {
	other := inst
	other.Public, other.Control = model.Endpoint{
		Host: "other.example.com",
		Port: 443,
	}, model.Endpoint{
		Host: "10.0.0.8",
		Port: 18000,
	}
	other.Handshakes = 7
	return other
}()

func profileOf(inst model.Installation) rollout.Profile {
	return rollout.SettingsOf(inst, envoy.Current.String()).Profile()
}

// wave is a bed with two edges and two gateways that have all resources. edge-a and gateway-0 are in the first wave.
type wave struct {
	*bed
	record       rollout.Record
	in, out      *ads // edges
	inGW, outGW  *ads
	inEdge, edge model.Subject
}

func newWave(t *testing.T) *wave {
	c1, c2 := workload("c1"), workload("c2")
	w := &wave{bed: newBedOf(t, changed)}
	w.inEdge, w.edge = edgeOf(c1), model.Subject{Role: model.RoleEdge, Node: "edge-b", ID: c2.ID}
	w.record = rollout.Record{Current: profileOf(inst), Next: profileOf(changed), Nodes: []rollout.Member{
		{Node: rollout.NodeOf(w.inEdge)}, {Node: rollout.NodeOf(gateway)},
	}}
	w.SetRollout(&w.record)
	w.Replace([]model.WorkloadCluster{c1, c2})
	w.in, w.out, w.inGW, w.outGW = w.envoy(t, w.inEdge), w.envoy(t, w.edge), w.envoy(t, gateway), w.envoy(t, gatewayAt(1))
	for _, a := range []*ads{w.in, w.out, w.inGW, w.outGW} {
		for _, typeURL := range []string{cds, lds} {
			if r := a.fetch(t, typeURL); len(r) == 0 {
				t.Fatalf("no %s", typeURL)
			}
		}
	}
	return w
}

// to sets the phase of the record.
func (w *wave) to(phase rollout.Phase) {
	r := w.record
	r.Phase = phase
	w.SetRollout(&r)
}

// gets requires one response that contains a text.
func (a *ads) gets(t *testing.T, what, text string) {
	t.Helper()
	r := a.next(t)
	body, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(body), text) {
		t.Errorf("%s: %v has no %q", what, names(r), text)
	}
}

// quiet requires that no response comes.
func (a *ads) quiet(t *testing.T, what string) {
	t.Helper()
	select {
	case r := <-a.got:
		t.Errorf("%s was sent %v", what, names(r))
	case <-time.After(pause):
	}
}

func TestOnlyTheFirstWaveGetsTheNextProfile(t *testing.T) {
	w := newWave(t)
	w.to(rollout.PhaseFirst)
	w.in.gets(t, "the edge of the wave", changed.Public.Host)
	got := both(t, w.inGW)
	expect(t, "changed Envoy clusters of the gateway of the wave", got[cds].names, []string{"control_channel"})
	expect(t, "its changed listeners", got[lds].names, []string{"public"})
	w.out.quiet(t, "another edge")
	w.outGW.quiet(t, "another gateway")
	if got := w.envoy(t, gateway).fetch(t, cds); got["control_channel"] == w.envoy(t, gatewayAt(1)).fetch(t,
		cds)["control_channel"] {
		t.Error("a gateway of the wave that comes back gets the control channel of the others")
	}

	w.to(rollout.PhaseRest)
	w.out.gets(t, "the other edge", changed.Public.Host)
	both(t, w.outGW)
	w.SetRollout(&rollout.Record{Current: profileOf(changed)})
	for what, a := range map[string]*ads{
		"an edge of the wave": w.in, "another edge": w.out,
		"a gateway of the wave": w.inGW, "another gateway": w.outGW,
	} {
		a.quiet(t, what+", after the rollout,")
	}
}

func TestAStoppedRolloutIsRolledBack(t *testing.T) {
	w := newWave(t)
	w.to(rollout.PhaseFirst)
	w.in.next(t)
	both(t, w.inGW)
	w.to(rollout.PhaseStopped)
	w.in.gets(t, "the edge of the wave", inst.Public.Host)
	got := both(t, w.inGW)
	expect(t, "Envoy clusters that the gateway of the wave gets back", got[cds].names, []string{"control_channel"})
	expect(t, "its listeners", got[lds].names, []string{"public"})
	w.out.quiet(t, "another edge")
	w.outGW.quiet(t, "another gateway")
	if got, want := w.envoy(t, gateway).fetch(t, cds), w.envoy(t, gatewayAt(1)).fetch(t, cds); !reflect.DeepEqual(
		got, want,
	) {
		t.Errorf("it has %v, the others %v", got, want)
	}
}

// TestEdgesDialANewAddress changes an address. Envoy keeps open tunnels unless their listener changes too.
func TestEdgesDialANewAddress(t *testing.T) {
	w := newWave(t)
	w.record.Initial = profileOf(inst)
	w.to(rollout.PhaseNone)
	w.in.quiet(t, "an edge at the address with which the installation began")
	old := w.claim(t, ptr(w.identity(t, w.inEdge, time.Now().Add(time.Hour))), nodeOf(w.inEdge))
	versioned := nodeOf(w.inEdge)
	versioned.Metadata = envoy.EdgeDial{Version: envoy.Current}.Metadata()
	current := w.claim(t, ptr(w.identity(t, w.inEdge, time.Now().Add(time.Hour))), versioned)
	if a, b := old.fetch(t, lds), current.fetch(t, lds); !reflect.DeepEqual(a, b) {
		t.Errorf("an edge whose agent is updated has other listeners: %v, %v", a, b)
	}
	old.fetch(t, cds)
	current.fetch(t, cds)
	w.to(rollout.PhaseFirst)
	old.gets(t, "an edge of the oldest version", changed.Public.Host)
	old.quiet(t, "it")
	got := both(t, current)
	expect(t, "changed listeners of the edge of the wave", got[lds].names, edgeListeners)
}

// TestWithoutARecordATargetIsServed has no record, like a new installation.
func TestWithoutARecordATargetIsServed(t *testing.T) {
	w := newWave(t)
	w.SetRollout(nil)
	w.in.gets(t, "an edge", changed.Public.Host)
	w.out.gets(t, "an edge", changed.Public.Host)
}

// TestGatewaysOfBothProfilesGetNewReplicas adds and removes gateways during a rollout.
func TestGatewaysOfBothProfilesGetNewReplicas(t *testing.T) {
	w := newWave(t)
	w.to(rollout.PhaseFirst)
	both(t, w.inGW)
	w.SetGateways(replicas(3))
	for what, a := range map[string]*ads{"the gateway of the wave": w.inGW, "another gateway": w.outGW} {
		got := both(t, a)
		expect(t, "new Envoy clusters of "+what, got[cds].names, []string{"peer_gateway-2"})
		expect(t, "changed listeners of "+what, got[lds].names, []string{"public"})
	}
}

// TestGatewaysJoinByTheProfileThatIsServed: a rollout to tunnels to each gateway is stopped, so edges are still served
// one gateway each, and keep it until the one that takes over is there.
func TestGatewaysJoinByTheProfileThatIsServed(t *testing.T) {
	served := inst
	served.GatewaysPerTunnel = 1
	b := newBedOf(t, inst)
	b.SetRollout(&rollout.Record{Current: profileOf(served), Next: profileOf(inst), Phase: rollout.PhaseStopped})
	c1 := workload("c1")
	b.Replace([]model.WorkloadCluster{c1})
	listeners := func() map[string]string { return b.envoy(t, edgeOf(c1)).fetch(t, lds) }
	before := listeners()
	gateways := replicas(8)
	for i := range gateways {
		gateways[i].Joining = i >= len(inst.Gateways)
	}
	b.SetGateways(gateways)
	after := listeners()
	if len(after) <= len(before) {
		t.Fatalf("the edge does not dial the gateway that takes over beside the other: %v, before %v", after, before)
	}
	for name := range before {
		if after[name] == "" {
			t.Errorf("the edge has lost %s before the gateway that takes over is there: %v", name, after)
		}
	}
}

// TestSharedResourcesOfGatewaysAreEqualInEveryProfile checks the precondition of the one feed of all gateways: profiles
// may change the contents of an Envoy cluster of GatewayClusters, but neither the names nor anything about a tunnel.
func TestSharedResourcesOfGatewaysAreEqualInEveryProfile(t *testing.T) {
	other := changed
	other.Workers, other.AccessLog, other.ReplicaAddress = 5, model.AccessLogAll, "gw-{i}.example.com:443"
	namesIn := func(inst model.Installation) (names []string) {
		for _, c := range envoy.GatewayClusters(inst) {
			names = append(names, c.GetName())
		}
		return names
	}
	if got, want := namesIn(other), namesIn(inst); !slices.Equal(got, want) {
		t.Errorf("Envoy clusters %v, were %v", got, want)
	}
	wc := workload("c1", "api.example.com")
	for i, c := range envoy.TunnelClusters(other, wc) {
		if !proto.Equal(c, envoy.TunnelClusters(inst, wc)[i]) {
			t.Errorf("Envoy cluster %s depends on the profile: it would reach all gateways at once", c.GetName())
		}
	}
}

func TestProfilesOfOtherBuilds(t *testing.T) {
	settings := rollout.SettingsOf(inst, "9.9")
	w := newWave(t)
	for name, tc := range map[string]struct {
		current rollout.Profile
		problem string
	}{
		"a newer version": {settings.Profile(), "for version 9.9"},
		"no address":      {`{"version":"0.1"}`, "is not rendered"},
		"a value that this build rejects": {
			rollout.Settings{Version: "0.1", Public: "a:1", Control: "b:1", Workers: 1000}.Profile(),
			"is not rendered",
		},
		"what this build serves":              {profileOf(inst), ""},
		"the oldest version that is rendered": {rollout.SettingsOf(inst, envoy.Oldest.String()).Profile(), ""},
	} {
		w.SetRollout(&rollout.Record{Current: tc.current})
		if got := w.Profiles().GetProblem(); (got == "") != (tc.problem == "") || !strings.Contains(got, tc.problem) {
			t.Errorf("%s: the problem is %q", name, got)
		}
		if got := w.envoy(t, gateway).fetch(t, cds); len(got) == 0 {
			t.Errorf("%s: nothing is served", name)
		}
	}
}

// TestTheVersionOfAProfileIsRendered serves an agent of this version only what the profile's version has.
func TestTheVersionOfAProfileIsRendered(t *testing.T) {
	logging := inst
	logging.AccessLog = model.AccessLogAll
	b := newBedOf(t, logging)
	wc := workload("c1")
	b.Replace([]model.WorkloadCluster{wc})
	for version, want := range map[envoy.Version]bool{envoy.Oldest: false, envoy.Current: true} {
		b.SetRollout(&rollout.Record{Current: rollout.SettingsOf(logging, version.String()).Profile()})
		for _, s := range []model.Subject{gateway, edgeOf(wc)} {
			node := nodeOf(s)
			versioned := bind
			versioned.Version = envoy.Current
			if node.Metadata = versioned.Metadata(); s.Role == model.RoleEdge {
				node.Metadata = envoy.EdgeDial{Version: envoy.Current}.Metadata()
			}
			identity := b.identity(t, s, time.Now().Add(time.Hour))
			a := b.claim(t, &identity, node)
			a.subscribe(t, lds, nil)
			for _, r := range a.next(t).GetResources() {
				if r.GetName() == "public" || r.GetName() == "connect" {
					continue // one writes records that are the same for every version, the other one nothing
				}
				if got := strings.Contains(string(r.GetResource().GetValue()), "%CONNECTION_ID%"); got != want {
					t.Errorf("a %s by the profile of version %s logs the number of the connection: %t", s.Role, version, got)
				}
			}
		}
	}
}

func TestAServerAnnouncesItsProfiles(t *testing.T) {
	w := newWave(t)
	current, next := profileOf(inst).ID(), profileOf(changed).ID()
	await := func(what string, want func(*reportv1.ProfileState) bool) {
		t.Helper()
		eventually.True(t, patience, what, func() error {
			if state := w.Profiles(); !want(state) {
				return fmt.Errorf("announced is %v", state)
			}
			return nil
		})
	}
	await("at first", func(s *reportv1.ProfileState) bool {
		return s.GetTarget() == string(profileOf(changed)) && s.GetAnswered() == 4 && s.GetTotal() == 4 &&
			len(s.GetNodes()) == 0
	})
	w.to(rollout.PhaseFirst)
	r := <-w.in.got
	await("before it answers", func(s *reportv1.ProfileState) bool {
		n := s.GetNodes()
		return len(n) == 2 && n[0].GetNode() == "gateway-0" && n[1].GetNode() == "edge-a" &&
			n[1].GetTunnelId() == w.inEdge.ID &&
			n[1].GetProfile() == next &&
			!n[1].GetApplied() &&
			s.GetAnswered() < 4
	})
	w.in.send(t, &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "no such host"},
	})
	both(t, w.inGW)
	await("after it refuses", func(s *reportv1.ProfileState) bool {
		n := s.GetNodes()
		return len(n) == 2 && n[0].GetApplied() && !n[1].GetApplied() &&
			strings.Contains(n[1].GetRefusal(), "no such host") &&
			s.GetAnswered() == 4
	})
	w.SetRollout(&rollout.Record{Current: profileOf(inst)})
	await("one that is in no wave and refuses", func(s *reportv1.ProfileState) bool {
		n := s.GetNodes()
		return len(n) == 1 && n[0].GetNode() == "edge-a" && n[0].GetProfile() == current && n[0].GetRefusal() != ""
	})
	w.in.next(t)
	await("after it accepts the profile of before", func(s *reportv1.ProfileState) bool { return len(s.GetNodes()) == 0 })
}

// TestForwardingReachesTheFirstWaveFirst has gateways forward clients by the next profile only. All receive the Envoy
// clusters for it. Only those of the first wave receive how many gateways a tunnel has, without which none forwards.
func TestForwardingReachesTheFirstWaveFirst(t *testing.T) {
	next := inst
	next.GatewaysPerTunnel = model.MaxGateways
	b := newBedOf(t, next)
	record := rollout.Record{Current: profileOf(inst), Next: profileOf(next), Nodes: []rollout.Member{
		{Node: rollout.NodeOf(gateway)},
	}}
	for _, step := range []struct {
		phase     rollout.Phase
		names     int
		different bool // the two gateways have different ones
	}{{rollout.PhaseNone, 0, false}, {rollout.PhaseFirst, 2, true}, {rollout.PhaseRest, 2, false}} {
		r := record
		r.Phase = step.phase
		b.SetRollout(&r)
		b.Replace([]model.WorkloadCluster{workload("c1")})
		var got [2]map[string]string
		for i := range got {
			node, bind, identity := nodeOf(gatewayAt(i)), bind, b.identity(t, gatewayAt(i), time.Now().Add(time.Hour))
			bind.Version = envoy.Current
			node.Metadata = bind.Metadata()
			got[i] = b.claim(t, &identity, node).fetch(t, cds)
			maps.DeleteFunc(got[i], func(name, _ string) bool { return !strings.HasPrefix(name, "peers/") })
			if len(got[i]) != step.names {
				t.Errorf("phase %q: gateway-%d has %v", step.phase, i, got[i])
			}
		}
		if differ := !maps.Equal(got[0], got[1]); differ != step.different {
			t.Errorf("phase %q: the gateways have %v", step.phase, got)
		}
	}
}
