package identity

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// reaching proves that edges reach the gateways from every kind of network, or report what prevents it. Each case has
// its own site, Cluster and edge, so that all run at the same time.
func (d *doors) reaching(t *testing.T) {
	for name, run := range map[string]func(*testing.T){
		"addresses":    d.severalAddresses,
		"DNS":          d.changingDNS,
		"dual stack":   d.dualStack,
		"proxy":        d.behindProxy,
		"no proxy":     d.exemptFromProxy,
		"interception": d.inTheWay,
		"black hole":   d.blackHole,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

// remote is a Cluster with an edge in its own site.
type remote struct {
	*world.Member
	site *netns.Site
}

func (d *doors) remote(t *testing.T, name string) *remote {
	t.Helper()
	site, err := d.AddSite(t.Context(), name)
	must(t, err)
	return &remote{d.Member(t, name, nil), site}
}

// join starts the edge and does not wait.
func (r *remote) join(t *testing.T, flags ...string) *lab.Agent {
	t.Helper()
	return r.World.StartEdge(t, lab.EdgeSpec{Name: "edge-" + r.Name, Site: r.site.Namespace, Flags: flags}, r.Member)
}

// public returns the gateways' public port at an address.
func public(address netip.Addr) string {
	return netip.AddrPortFrom(address, netns.PublicPort).String()
}

// deadAfter is longer than it takes to detect a dead tunnel.
const deadAfter = 12 * time.Second

// recovered waits until a member has worked for a while, and returns how long after the call it last failed.
func recovered(t *testing.T, m *world.Member, calm time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	var last time.Duration
	for ticker := time.NewTicker(poll); time.Since(start)-last < calm; <-ticker.C {
		if err := m.Works(t.Context()); err != nil {
			last = time.Since(start)
			if last > 2*patience {
				t.Fatalf("after %s: %v", last, err)
			}
		}
	}
	return last
}

func (d *doors) severalAddresses(t *testing.T) {
	r := d.remote(t, "addresses")
	dead, err := r.site.Nowhere(t.Context())
	must(t, err)
	r.join(
		t, "--gateway="+public(dead), "--gateway="+public(netns.PublicAddress(0)),
		"--gateway="+public(netns.PublicAddress(1)),
	)
	that(t, "an edge connects although one of several gateway addresses drops all packets", func(t *testing.T) {
		measured("one_dead_address_s", world.Took(t, 2*patience, r.Works).Seconds())
	})
	that(t, "an edge uses the next gateway address when its current one fails", func(t *testing.T) {
		must(t, r.site.Lose(t.Context(), netns.PublicAddress(0)))
		measured("address_dies_s", recovered(t, r.Member, deadAfter).Seconds())
	})
}

func (d *doors) changingDNS(t *testing.T) {
	r := d.remote(t, "dns")
	dns, err := r.site.ServeDNS(t.Context())
	must(t, err)
	r.join(t)
	that(t, "an edge reports a gateway name that does not resolve, and retries", func(t *testing.T) {
		eventually(t, d.LogContains("edge-dns", "DNS has no address for this name"))
	})
	that(t, "an edge connects as soon as the gateway's name resolves", func(t *testing.T) {
		dns.Set(netns.PublicName, netns.PublicAddress(0))
		measured("dns_appears_s", world.Took(t, 2*patience, r.Works).Seconds())
	})
	that(t, "an edge reconnects to a gateway that moved to another address", func(t *testing.T) {
		dns.Set(netns.PublicName, netns.PublicAddress(1))
		must(t, r.site.Lose(t.Context(), netns.PublicAddress(0)))
		measured("dns_moves_s", recovered(t, r.Member, deadAfter).Seconds())
	})
}

func (d *doors) dualStack(t *testing.T) {
	r := d.remote(t, "dual")
	v6 := netip.MustParseAddr("fd00:111::1")
	must(t, r.site.AddAddress(t.Context(), v6))
	relay := newRelay(t, r.site.Namespace, netip.AddrPortFrom(v6, netns.PublicPort), public(netns.PublicAddress(0)))
	dead, err := r.site.Nowhere(t.Context())
	must(t, err)
	must(t, r.site.SetHost(netns.PublicName, dead, v6))
	r.join(t)
	that(t, "an edge connects over IPv6 when the gateway's IPv4 address is unreachable", func(t *testing.T) {
		measured("dual_stack_s", world.Took(t, 2*patience, r.Works).Seconds())
		if relay.count.Load() == 0 {
			t.Error("nothing went by IPv6")
		}
	})
}

func (d *doors) inTheWay(t *testing.T) {
	r := d.remote(t, "middle")
	trap := netip.MustParseAddr("10.111.9.9")
	must(t, r.site.AddAddress(t.Context(), trap))
	must(t, r.site.SetHost(netns.PublicName, trap))
	box := newInspector(t, r.site.Namespace, netip.AddrPortFrom(trap, netns.PublicPort), public(netns.PublicAddress(0)))
	r.join(t)
	that(t, "an edge behind TLS inspection reports it, with the issuer of the certificate", func(t *testing.T) {
		eventually(t, d.LogContains("edge-middle", "inspects TLS", "Corporate Inspection CA"))
	})
	that(t, "an edge behind a captive portal reports it", func(t *testing.T) {
		box.mode.Store(captive)
		eventually(t, d.LogContains("edge-middle", "captive portal"))
	})
	that(t, "an edge reports a firewall that resets unknown protocols", func(t *testing.T) {
		box.mode.Store(cutting)
		eventually(t, d.LogContains("edge-middle", "connection was closed"))
	})
	that(t, "an edge connects without help after the interception ends", func(t *testing.T) {
		box.mode.Store(open)
		measured("way_free_s", world.Took(t, 2*patience, r.Works).Seconds())
	})
}

func (d *doors) blackHole(t *testing.T) {
	r := d.remote(t, "hole")
	dead, err := r.site.Nowhere(t.Context())
	must(t, err)
	must(t, r.site.SetHost(netns.PublicName, dead))
	r.join(t)
	that(t, "an edge reports a network that drops all packets", func(t *testing.T) {
		must(t, proc.Wait(t.Context(), 2*patience, d.LogContains("edge-hole", "no answer: the machine is down")))
	})
	must(t, r.site.SetHost(netns.PublicName, netns.PublicAddress(0), netns.PublicAddress(1)))
	must(t, proc.Wait(t.Context(), 2*patience, r.Works))
	that(t, "an edge reconnects within seconds after its cable is plugged in again", func(t *testing.T) {
		must(t, r.site.Unplug(t.Context()))
		eventually(t, r.Unreachable)
		start := time.Now()
		must(t, proc.Wait(t.Context(), patience, func(context.Context) error {
			if time.Since(start) < 10*time.Second {
				return fmt.Errorf("out for %s", time.Since(start))
			}
			return nil
		}))
		must(t, r.site.Plug(t.Context()))
		measured("cable_back_s", world.Took(t, 2*patience, r.Works).Seconds())
	})
}
