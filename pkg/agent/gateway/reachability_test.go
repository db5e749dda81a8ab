package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

func TestWhichClustersAreUnreachable(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	now := time.Now()
	ids := map[string]string{}
	tests := map[string]struct {
		began  time.Time
		absent time.Time // since when it has no tunnel; zero: it has one
		others bool      // another gateway has one
		unsure bool
		want   string
	}{
		"it has a tunnel":             {began: now.Add(-time.Hour)},
		"it has lost it a moment ago": {began: now.Add(-time.Hour), absent: now.Add(-unreachableAfter / 2)},
		"it has been without one for a while": {
			began:  now.Add(-time.Hour),
			absent: now.Add(-unreachableAfter),
			want:   unreachableForm,
		},
		"all tunnels were just lost": {began: now.Add(-unreachableGrace / 2), absent: now.Add(-unreachableAfter)},
		"another gateway has one": {
			began:  now.Add(-time.Hour),
			absent: now.Add(-unreachableAfter),
			others: true,
		},
		"there are tunnels that are not recorded": {
			began:  now.Add(-time.Hour),
			absent: now.Add(-unreachableAfter),
			unsure: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := xdsproxy.New(t.TempDir(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ids[name] = model.NewID()
			id := domain.TunnelID(ids[name])
			k := newReachability(r, nil, envoyadmin.Client{}, unmeasured(), slog.New(slog.DiscardHandler))
			k.began, k.known = tc.began, map[string]clusterName{"c1.prod": {id: id}}
			if tc.absent.IsZero() {
				k.counts[id] = 1
			} else {
				k.absent[id] = tc.absent
			}
			k.decide(now, false) // so that ids without a tunnel are known
			if tc.others {
				ctx, cancel := context.WithCancel(t.Context())
				k.askOthers(ctx, domain, func(_ context.Context, asked []string) (reportagent.Peers, error) {
					cancel()
					if !slices.Equal(asked, []string{ids[name]}) {
						t.Errorf("asked about %q", asked)
					}
					return reportagent.Peers{Known: true, Gateways: map[string]reportagent.Peer{
						"gateway-1": {Edges: map[model.EdgeRef]bool{{ID: ids[name]}: true}},
					}}, nil
				})
			}
			k.decide(now, !tc.unsure)
			if got := k.Form("c1.prod"); got != tc.want {
				t.Errorf("got the form %q, want %q", got, tc.want)
			}
			k.counts[id] = 1
			if k.decide(now, true); k.Form("c1.prod") != "" {
				t.Error("with a tunnel it is dark")
			}
		})
	}
}

// TestWhichReportsOfOtherGatewaysCount has a workload cluster that is assigned to gateway-0, which asks, and gateway-3.
func TestWhichReportsOfOtherGatewaysCount(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	id := idOf(four, four[:1], []model.Gateway{four[0], four[3]})
	none := reportagent.Peer{Ready: true}
	one := reportagent.Peer{Ready: true, Edges: map[model.EdgeRef]bool{{ID: id}: true}}
	incomplete := reportagent.Peer{Ready: true, Incomplete: true}
	draining := reportagent.Peer{Edges: one.Edges}
	type answer = map[string]reportagent.Peer
	for name, tc := range map[string]struct {
		answers []answer
		all     bool // they have all gateways that live
		want    bool // it is unreachable
	}{
		"no gateway has reported":                   {answers: []answer{{}}},
		"no other gateway lives":                    {answers: []answer{{}}, all: true, want: true},
		"it has no tunnel":                          {answers: []answer{{"gateway-3": none}}, want: true},
		"another one reports":                       {answers: []answer{{"gateway-2": none}}},
		"another one reports, and it is dead":       {answers: []answer{{"gateway-2": none}}, all: true, want: true},
		"it has one":                                {answers: []answer{{"gateway-3": one}}},
		"it has one, and ends":                      {answers: []answer{{"gateway-3": draining}}},
		"it may have one that it does not report":   {answers: []answer{{"gateway-3": incomplete}}},
		"it had one, and is silent":                 {answers: []answer{{"gateway-3": one}, {"gateway-2": none}}},
		"it had one":                                {answers: []answer{{"gateway-3": one}, {"gateway-3": none}}, want: true},
		"an old gateway had one, and may be silent": {answers: []answer{{"gateway-2": one}, {"gateway-3": none}}},
		"an old gateway had one, and has gone": {
			answers: []answer{{"gateway-2": one}, {"gateway-3": none}}, all: true, want: true,
		},
	} {
		k := &reachability{}
		k.forwards.me, k.forwards.domain = "gateway-0", domain
		k.forwards.set(fleet{four, 2})
		tunnelID, since := domain.TunnelID(id), time.Now().Add(-2*unreachableAfter)
		for _, gateways := range tc.answers {
			k.note(domain, reportagent.Peers{Gateways: gateways}, since.Add(unreachableAfter), tc.all)
		}
		if got := k.nowhere(tunnelID, k.forwards.route(tunnelID).form, since); got != tc.want {
			t.Errorf("%s: unreachable %t, want %t", name, got, tc.want)
		}
	}
}

func TestLimitsAreNotInTheResourcesOfEnvoy(t *testing.T) {
	wc := model.WorkloadCluster{ID: model.NewID(), Hostname: "c1.prod.tunnels.example.com"}
	inst := model.Installation{Domain: "tunnels.example.com"}
	received := packed(t, envoy.TunnelClusters(inst, wc)[0])
	closing := envoy.TunnelClusters(inst, wc)[0]
	envoy.Complete(closing)
	usual := packed(t, closing)
	wc.Limits = model.Limits{Connections: 7}
	limited := packed(t, envoy.TunnelClusters(inst, wc)[0])
	k := &reachability{}
	for what, resource := range map[string]*anypb.Any{"limits": limited, "no limits": received} {
		if got := k.Apply(wc.Hostname, "", resource); string(got.GetValue()) != string(usual.GetValue()) {
			t.Errorf("an Envoy cluster with %s is another", what)
		}
	}
	if string(received.GetValue()) == string(usual.GetValue()) {
		t.Error("Envoy keeps tunnels that are no longer in use")
	}
	if got := k.Apply(wc.Hostname, unreachableForm, usual); string(got.GetValue()) == string(usual.GetValue()) {
		t.Error("a dark Envoy cluster is like any other")
	}
}

// TestWhenAGraceBegins closes and opens tunnels of a gateway that has two.
func TestWhenAGraceBegins(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	of := func(keys ...string) (all []tunnels.Tunnel) {
		for _, key := range keys {
			all = append(all, tunnels.Tunnel{Key: key, ID: "id-" + key})
		}
		return all
	}
	for name, tc := range map[string]struct {
		opened   []tunnels.Tunnel
		closed   []string
		snapshot bool // of all tunnels, because too much has changed
		want     bool
	}{
		"one ends":                            {closed: []string{"a"}},
		"all end":                             {closed: []string{"a", "b"}, want: true},
		"all end, and others open":            {closed: []string{"a", "b"}, opened: of("c"), want: true},
		"one opens again":                     {opened: of("a")},
		"a snapshot has none":                 {snapshot: true, want: true},
		"a snapshot has only others":          {snapshot: true, opened: of("c", "d"), want: true},
		"a snapshot has one that was counted": {snapshot: true, opened: of("b", "c")},
	} {
		k := &reachability{keys: map[string]string{}, counts: map[string]int{}}
		k.count(domain, of("a", "b"), nil)
		if !k.began.IsZero() {
			t.Errorf("%s: a grace began with the first tunnels", name)
		}
		closed := tc.closed
		if tc.snapshot {
			closed = k.absentFrom(tc.opened)
		}
		k.count(domain, tc.opened, closed)
		if began := !k.began.IsZero(); began != tc.want {
			t.Errorf("%s: a grace begins: %t, want %t", name, began, tc.want)
		}
	}
}

// TestAFleetThatReturnsIsEvaluatedWithPauses has a table that changes all the time, and full evaluations that take so
// long that the pause after each is reachabilityInterval. So there are no evaluations between them.
func TestAFleetThatReturnsIsEvaluatedWithPauses(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	r, err := xdsproxy.New(filepath.Join(dir, "cache"), log)
	if err != nil {
		t.Fatal(err)
	}
	table := tunnels.New(tunnels.Config{Domain: domain, Log: filepath.Join(dir, "tunnels.log"), Logger: log})
	if err := table.Fresh(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		kas, at := model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: "a"}, netip.MustParseAddrPort("192.0.2.1:1")
		for ctx.Err() == nil {
			table.Claim(kas, at, at, 10, 10)
			_ = retry.Sleep(ctx, 5*time.Millisecond)
		}
	}()
	defer func() { cancel(); <-ended }()
	k := newReachability(r, table, envoyadmin.Client{Socket: filepath.Join(dir, "none")}, unmeasured(), log)
	evaluations := 0
	k.onNames = func(map[string]int) {
		if evaluations++; evaluations > 1 {
			if ago := time.Since(k.counted); ago < reachabilityInterval {
				t.Errorf("the evaluation before a full one was %s ago", ago)
			}
		}
		if evaluations == 3 {
			cancel()
		}
		time.Sleep(reachabilityInterval / restFactor)
	}
	k.run(ctx, domain)
}

// TestLimitsOfAnEarlierAgentAreRemoved sets a limit, and a value of an operator, in a real Envoy.
func TestLimitsOfAnEarlierAgentAreRemoved(t *testing.T) {
	dir := envoytest.Dir(t)
	envoytest.Start(t, dir, []byte(`
admin: {address: {pipe: {path: admin.sock}}}
layered_runtime: {layers: [{name: limits, admin_layer: {}}]}
`))
	k := &reachability{admin: envoyadmin.Client{Socket: filepath.Join(dir, "admin.sock")}}
	const limit = "circuit_breakers.c1.prod.tunnels.example.com.default.max_requests"
	if err := k.admin.Post(t.Context(), "/runtime_modify?"+limit+"=3&of.an.operator=8"); err != nil {
		t.Fatal(err)
	}
	if err := k.limit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := k.admin.Overrides(t.Context())
	if diff := cmp.Diff(map[string]string{"of.an.operator": "8"}, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

// envoyAdmin is the admin interface of an Envoy with limits. It rejects headers like a real one.
type envoyAdmin struct {
	rejects string // requests with this text
	set     map[string]string
	largest int // request
}

func (e *envoyAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	size := len(r.RequestURI)
	e.largest = max(e.largest, size)
	switch {
	case size > 60<<10:
		w.WriteHeader(http.StatusRequestHeaderFieldsTooLarge)
	case e.rejects != "" && strings.Contains(r.RequestURI, e.rejects):
		w.WriteHeader(http.StatusBadRequest)
	case r.URL.Path == "/runtime_modify":
		for key, values := range r.URL.Query() {
			if e.set[key] = values[0]; values[0] == "" {
				delete(e.set, key)
			}
		}
	case r.URL.Path == "/runtime":
		_, _ = w.Write([]byte(`{"entries":{}}`))
	default:
		const name = "envoy_runtime_admin_overrides_active"
		_, _ = fmt.Fprintf(w, "# TYPE %s gauge\n%s{} %d\n", name, name, len(e.set))
	}
}

// TestLongNamesPreventNoLimits has more names than fit into one request, of the greatest length, and one whose limits
// Envoy rejects.
func TestLongNamesPreventNoLimits(t *testing.T) {
	fake := &envoyAdmin{set: map[string]string{}}
	path := filepath.Join(t.TempDir(), "admin.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: fake, ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 1 << 20}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	want := map[string]string{}
	k := &reachability{admin: envoyadmin.Client{Socket: path}, known: map[string]clusterName{}}
	for i := range 600 {
		name := fmt.Sprintf("%03d.%s", i, strings.Repeat("x", 249))
		key := "circuit_breakers." + name + ".default.max_requests"
		want[key] = "7"
		k.known[name] = clusterName{limits: map[string]string{key: "7"}}
	}
	fake.rejects = ".300."
	if err := k.limit(t.Context()); err == nil || !errors.Is(err, envoyadmin.ErrStatus) || len(err.Error()) > 500 {
		t.Errorf("got %v", err)
	}
	if missing := len(want) - len(fake.set); missing == 0 || missing > 100 {
		t.Errorf("%d of %d limits are missing", missing, len(want))
	}
	fake.rejects = ""
	if err := k.limit(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, fake.set); diff != "" {
		t.Error(diff)
	}
	if fake.largest > maxOverrideBytes+100 {
		t.Errorf("a request has %d bytes", fake.largest)
	}
	clear(k.known)
	if err := k.limit(t.Context()); err != nil || len(fake.set) > 0 {
		t.Errorf("%d limits are left, %v", len(fake.set), err)
	}
}
