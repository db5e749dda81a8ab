package main

import (
	"context"
	"fmt"
	"net"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
)

// inspectConfig is the address of the inspection service.
type inspectConfig struct{ listen string }

func (c *inspectConfig) addTo(set *pflag.FlagSet) {
	set.StringVar(
		&c.listen, "inspect-listen", collect.DefaultAddress,
		"loopback address of inspection (CSDS and fairlead's own, gRPC without TLS), for kubectl port-forward; 0 for none",
	)
}

func (c *inspectConfig) complete() error {
	if err := collect.CheckAddress(c.listen); err != nil {
		return fmt.Errorf("--inspect-listen: %w", err)
	}
	return nil
}

// serveInspection serves inspection until ctx ends.
func (s *server) serveInspection(ctx context.Context, listener net.Listener, hub *reporthub.Hub) error {
	return collect.Serve(ctx, listener, collect.Config{
		Domain: s.inst.Domain, Hub: hub, Published: s.ads.Status(), Refusals: &s.refusals,
		Calls: traces.Calls(
			traces.Trusted, statusv3.ClientStatusDiscoveryService_FetchClientStatus_FullMethodName,
			inspectv1.Inspect_Fleet_FullMethodName, inspectv1.Inspect_Resources_FullMethodName,
			inspectv1.Inspect_Dump_FullMethodName,
		),
	})
}

// noteRefusal returns a function that records rejected callers for inspection.
func (s *server) noteRefusal(about string) func(string, error) {
	return func(address string, why error) { s.refusals.Note(time.Now(), address, about, why) }
}
