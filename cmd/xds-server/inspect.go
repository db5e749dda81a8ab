package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/pkg/inspect"
	"github.com/fairlead/fairlead/pkg/report"
)

// inspectConfig is where people look.
type inspectConfig struct{ listen string }

func (c *inspectConfig) addTo(set *pflag.FlagSet) {
	set.StringVar(&c.listen, "inspect-listen", inspect.DefaultAddress, "loopback address of inspection (CSDS and fairlead's own, gRPC without TLS), which people reach by port-forwarding; 0 for none")
}

func (c *inspectConfig) complete() error {
	if err := inspect.CheckAddress(c.listen); err != nil {
		return fmt.Errorf("--inspect-listen: %w", err)
	}
	return nil
}

// serveInspection serves inspection until ctx ends.
func (s *server) serveInspection(ctx context.Context, listener net.Listener, hub *report.Hub) error {
	return inspect.Serve(ctx, listener, inspect.Config{Domain: s.inst.Domain, Hub: hub, Published: s.ads.Status(), Refusals: &s.refusals})
}

// noteRefusal remembers, for those who look, who was refused.
func (s *server) noteRefusal(about string) func(string, error) {
	return func(address string, why error) { s.refusals.Note(time.Now(), address, about, why) }
}
