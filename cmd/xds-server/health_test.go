package main

import (
	"log/slog"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	"github.com/fairlead/fairlead/pkg/xds"
)

// TestProbesCopyNothing: a probe runs every few seconds, and holds the lock on which all work depends.
func TestProbesCopyNothing(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	log := slog.New(slog.DiscardHandler)
	ads := xds.NewServer(model.Installation{
		Domain: domain, Public: model.Endpoint{Host: "gateways.example.com", Port: 443},
		Control:  model.Endpoint{Host: "10.0.0.9", Port: 18000},
		Gateways: []model.Gateway{{Name: "gateway-0"}},
	}, log)
	defer ads.Close()
	for name, probe := range (&server{ads: ads}).probes(reporthub.New(domain, ads, log)) {
		if n := testing.AllocsPerRun(1000, probe); n > 0 {
			t.Errorf("the probe of %s allocates %.0f times", name, n)
		}
	}
}
