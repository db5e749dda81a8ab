package identity

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// apiServers proves that one dead apiserver of three costs nothing. Each request uses its own connection.
func (o *outage) apiServers(t *testing.T, p *prepared) {
	first, second := p.standIns[0], p.standIns[1]
	that(t, "the first apiserver receives all requests while all apiservers are healthy", func(t *testing.T) {
		eventually(t, p.api.AnsweredBy(first))
	})
	for _, death := range []struct {
		name, key string
		kill      func()
		revive    func()
		costs     bool // requests in flight are lost
	}{
		{"unready", "sick", func() { first.Unhealthy.Store(true) }, func() {
			first.Unhealthy.Store(
				false)
		}, false},
		{"unplugged", "unplugged", func() { must(t, p.apiSite.Unplug(t.Context())) }, func() {
			must(t,
				p.apiSite.Plug(t.Context()))
		}, true},
		{"stopped", "ended", first.Stop, first.Start, true},
	} {
		that(t, "no new request fails or is slow while the first apiserver is "+death.name, func(t *testing.T) {
			lost := o.oneDies(t, p.api, second, death.key, death.kill)
			if lost > 0 && !death.costs {
				t.Errorf("%d requests failed that were under way", lost)
			}
		})
		that(t, "the first apiserver receives requests again after it was "+death.name, func(t *testing.T) {
			death.revive()
			measured("apiserver_"+death.key+"_back_s", world.Took(t, patience, p.api.AnsweredBy(first)).Seconds())
		})
	}
	that(
		t,
		"an apiserver that accepts connections and does not answer loses its traffic within seconds",
		func(t *testing.T) {
			first.Hung.Store(true)
			measured("apiserver_mute_left_s", world.Took(t, patience, p.api.AnsweredBy(second)).Seconds())
			l := traffic.StartFresh(t, 40, "/whoami", p.api.Paths()...)
			defer l.Stop()
			must(t, proc.Wait(t.Context(), patience, l.AtLeast(200)))
			must(t, l.Unbroken(traffic.Mark{}))
			first.Stop()
		},
	)
}

// oneDies calls kill for the first apiserver under load, and returns how many requests in flight have failed. A
// connection to an apiserver that dies is lost, with or without a tunnel.
func (o *outage) oneDies(t *testing.T, m *world.Member, next *world.StandIn, key string, kill func()) (lost int) {
	l := traffic.StartFresh(t, 40, "/whoami", m.Paths()...)
	defer l.Stop()
	must(t, proc.Wait(t.Context(), patience, l.AtLeast(80)))
	before, usual := l.Count(), l.Usual()
	kill()
	died := time.Now()
	must(t, proc.Wait(t.Context(), patience, m.AnsweredBy(next)))
	measured("apiserver_"+key+"_left_s", time.Since(died).Seconds())
	must(t, proc.Wait(t.Context(), patience, l.AtLeast(before.Requests+200)))
	l.Stop()
	after := l.Count()
	lost = after.Failed - before.Failed
	measured("apiserver_"+key+"_lost", float64(lost))
	slow, err := l.BegunAfter(died, usual)
	measured("apiserver_"+key+"_slow", float64(len(slow)))
	must(t, err)
	if len(slow) > 0 {
		t.Errorf("%d of %d requests took more than %s: %q", len(slow), after.Requests-before.Requests, usual, slow)
	}
	return lost
}

// change makes tunnels come and go while no control plane counts them.
func (o *outage) change(t *testing.T, p *prepared) {
	that(t, "reverse tunnels close, reopen and move while no xds-server records them", func(t *testing.T) {
		world.StopEdge(t, p.fadeEdge) // permanently
		for _, e := range p.all {
			if e.agent == p.fadeEdge {
				e.gone = true
			}
		}
		for range 3 {
			must(t, p.crashEdge.KillEnvoy())
			must(t, p.cachedEdge.KillEnvoy())
			eventually(t, func(ctx context.Context) error {
				if err := p.crash.Works(ctx); err != nil {
					return err
				}
				return p.cached.Works(ctx)
			})
		}
		must(t, o.Gateways[0].KillEnvoy())
		eventually(t, o.oslo.Works)
		must(t, proc.Wait(t.Context(), patience, p.fades.Unreachable))
	})
}
