package edge

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestAnnouncedAddressesArePersisted(t *testing.T) {
	path := filepath.Join(t.TempDir(), announcedFile)
	start := func(d model.TunnelDomain) *announced {
		a := &announced{
			path: path, domain: d, dialer: &dial.Dialer{Addresses: []model.Endpoint{atFront}},
			log: slog.New(slog.DiscardHandler),
		}
		a.load()
		return a
	}
	a := start(domain)
	a.add([]model.Endpoint{atFront})
	if _, err := os.Stat(path); err == nil || len(a.all) > 0 {
		t.Errorf("the address of the bootstrap file is stored too: %v", a.all)
	}
	var want []model.Endpoint
	for i := range 2 * maxAnnounced {
		e := model.Endpoint{Host: fmt.Sprintf("gateway-%d.example.com", i), Port: 443}
		a.add([]model.Endpoint{atFront, e})
		a.add([]model.Endpoint{e})
		want = slices.Insert(want, 0, e)
	}
	want = want[:maxAnnounced]
	if got := start(domain).all; !slices.Equal(got, want) {
		t.Errorf("after a restart: got %v, want %v", got, want)
	}
	if got := start("tunnels.example.org").all; len(got) > 0 {
		t.Errorf("the addresses of another installation are used: %v", got)
	}
	if err := os.WriteFile(path, []byte(`{"domain":`), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := start(domain)
	damaged.add(want[:1])
	if got := start(domain).all; !slices.Equal(got, want[:1]) {
		t.Errorf("after a damaged file: got %v, want %v", got, want[:1])
	}
}

func TestARejectedAddressIsNotAnnounced(t *testing.T) {
	moved := model.Endpoint{Host: "gw.example.org", Port: 443}
	for what, tc := range map[string]struct {
		allowed targets
		want    int
	}{"any": {want: 1}, "only the bootstrap file's": {allowed: onList}} {
		t.Run(what, func(t *testing.T) {
			e := &Role{Config: Config{Domain: domain, Dialer: &dial.Dialer{Addresses: []model.Endpoint{atFront}}}}
			e.targets, e.announced = tc.allowed, &announced{dialer: e.Dialer, log: slog.New(slog.DiscardHandler)}
			packed := pack(t, clusterOf("gateway-0_edge-a", moved))
			if err := e.Check(edgeSubject)(packed.GetTypeUrl(), packed); (err == nil) != (tc.want == 1) {
				t.Fatal(err)
			}
			if got := e.announced.all; len(got) != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestAllowedTargetsExcludeStoredAddresses: with --allow-target, an edge dials only the addresses that it was given, so
// it ignores those that it stored before it had the flag.
func TestAllowedTargetsExcludeStoredAddresses(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	start := func(allowed ...model.Endpoint) *announced {
		r, err := NewRole(Config{
			Domain: domain, Dialer: &dial.Dialer{Addresses: []model.Endpoint{atFront}},
			Allowed: network.Allowed{Targets: allowed},
		}, dir, status.New(status.Process), log)
		if err != nil {
			t.Fatal(err)
		}
		return r.announced
	}
	start().add([]model.Endpoint{stray})
	if a := start(); len(a.all) != 1 {
		t.Fatalf("stored %v", a.all)
	}
	if a := start(target); a != nil {
		t.Errorf("with --allow-target the edge dials %v", a.all)
	}
}
