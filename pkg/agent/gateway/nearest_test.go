package gateway

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/agent/trips"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// measured returns what has measured these classes.
func measured(t *testing.T, classes string) *trips.Meter {
	t.Helper()
	path := filepath.Join(t.TempDir(), tripsFile)
	if err := os.WriteFile(path, []byte(classes), 0o600); err != nil {
		t.Fatal(err)
	}
	return trips.New(path, slog.New(slog.DiscardHandler))
}

// TestTheNearestGatewaysComeFirst: by their round trips, and by their zones if these are similar. This one is
// gateway-3.
func TestTheNearestGatewaysComeFirst(t *testing.T) {
	id := domain.TunnelID(model.NewID())
	for what, tc := range map[string]struct {
		zones   string // of gateway-0 to gateway-3
		classes string
		want    string
	}{
		"nothing is known": {want: "to:gateway-0,gateway-1,gateway-2"},
		"all are equally near": {
			classes: `{"gateway-0":0,"gateway-1":0,"gateway-2":0}`, want: "to:gateway-0,gateway-1,gateway-2",
		},
		"one is far": {
			classes: `{"gateway-0":2,"gateway-1":0,"gateway-2":0}`, want: "to:gateway-1,gateway-2;gateway-0",
		},
		"one has never answered": {
			classes: `{"gateway-1":1,"gateway-2":0}`, want: "to:gateway-2;gateway-1;gateway-0",
		},
		"one is in this zone": {
			zones: "a b a b", classes: `{"gateway-0":0,"gateway-1":0,"gateway-2":0}`, want: "to:gateway-1;gateway-0,gateway-2",
		},
		"one is in this zone, and another is nearer": {
			zones: "a b a b", classes: `{"gateway-0":0,"gateway-1":1,"gateway-2":0}`, want: "to:gateway-0,gateway-2;gateway-1",
		},
		"the zone of this one is not known": {
			zones: "a b a ?", classes: `{"gateway-0":0,"gateway-1":0,"gateway-2":0}`, want: "to:gateway-0,gateway-1,gateway-2",
		},
	} {
		t.Run(what, func(t *testing.T) {
			r, err := xdsproxy.New(t.TempDir(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			k := newReachability(r, nil, envoyadmin.Client{}, measured(t, tc.classes), slog.New(slog.DiscardHandler))
			k.forwards.me, k.forwards.domain = "gateway-3", domain
			all := slices.Clone(four)
			for i, zone := range strings.Fields(tc.zones) {
				all[i].Zone = strings.Trim(zone, "?")
			}
			k.forwards.set(fleet{all, model.MaxGateways})
			k.rank()
			k.began, k.known = time.Now().Add(-time.Hour), map[string]clusterName{"c1.prod": {id: id}}
			k.absent[id] = time.Now().Add(-forwardAfter)
			if k.decide(time.Now(), true); k.Form("c1.prod") != tc.want {
				t.Errorf("got the form %q, want %q", k.Form("c1.prod"), tc.want)
			}
		})
	}
}

// TestANewOrderReachesEnvoyGradually has a thousand Envoy clusters that forward when a gateway becomes the nearest.
func TestANewOrderReachesEnvoyGradually(t *testing.T) {
	r, err := xdsproxy.New(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	k := newReachability(r, nil, envoyadmin.Client{}, unmeasured(), slog.New(slog.DiscardHandler))
	k.forwards.me, k.forwards.domain = "gateway-3", domain
	k.forwards.set(fleet{four, 3})
	k.rank()
	now := time.Now()
	k.began = now.Add(-time.Hour)
	for range 1000 {
		id := idOf(four, four[:3])
		k.known[id] = clusterName{id: domain.TunnelID(id)}
	}
	count := func(form string) (n int) {
		for name := range k.known {
			if k.Form(name) == form {
				n++
			}
		}
		return n
	}
	if k.decide(now, true); count("to:gateway-0,gateway-1,gateway-2") != len(k.known) {
		t.Fatal("the clients of a gateway without tunnels are not all forwarded at once")
	}
	k.trips = measured(t, `{"gateway-2":0}`)
	k.rank()
	const is = "to:gateway-2;gateway-0,gateway-1"
	for seconds := range 3 {
		k.decide(now.Add(time.Duration(1+seconds)*time.Second), true)
		if n := count(is); n != forwardChanges*(1+seconds) {
			t.Errorf("after %d s, %d of %d have the new order, want %d", 1+seconds, n, len(k.known), forwardChanges*(1+seconds))
		}
	}
	// Another gateway that ends is no change of order: its clients go elsewhere at once.
	some := slices.Clone(four)
	some[1].Leaving = true
	k.forwards.set(fleet{some, 3})
	if k.decide(now.Add(4*time.Second), true); count(is)+count("to:gateway-0,gateway-1,gateway-2") != 0 {
		t.Error("clients are still forwarded to a gateway that ends")
	}
}
