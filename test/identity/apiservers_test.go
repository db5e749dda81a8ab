package identity

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
)

// apiServers proves that one of three dead apiservers costs nothing: point 10. Each request has a connection of its own.
func (o *outage) apiServers(t *testing.T, p *prepared) {
	first, second := p.standIns[0], p.standIns[1]
	that(t, "while all apiservers are healthy the first one has all requests", func(t *testing.T) {
		eventually(t, p.api.answeredBy(first))
	})
	for _, death := range []struct {
		name, key string
		kill      func()
		revive    func()
		costs     bool // what is under way in it
	}{
		{"that answers 500 to /readyz", "sick", func() { first.sick.Store(true) }, func() { first.sick.Store(false) }, false},
		{"whose machine was unplugged", "unplugged", func() { must(t, p.apiSite.Unplug(t.Context())) }, func() { must(t, p.apiSite.Plug(t.Context())) }, true},
		{"whose process has ended", "ended", first.stop, first.start, true},
	} {
		that(t, "an apiserver "+death.name+" costs no new request, and makes none slow", func(t *testing.T) {
			lost := o.oneDies(t, p.api, second, death.key, death.kill)
			if lost > 0 && !death.costs {
				t.Errorf("%d requests failed that were under way", lost)
			}
		})
		that(t, "when the one "+death.name+" is well again, it is the first again", func(t *testing.T) {
			death.revive()
			measured("apiserver_"+death.key+"_back_s", took(t, patience, p.api.answeredBy(first)).Seconds())
		})
	}
	that(t, "an apiserver that takes connections and says nothing gets none any more after some seconds", func(t *testing.T) {
		first.mute.Store(true)
		measured("apiserver_mute_left_s", took(t, patience, p.api.answeredBy(second)).Seconds())
		l := startFreshLoad(t, 40, "/whoami", p.api.paths()...)
		defer l.stop()
		must(t, lab.Wait(t.Context(), patience, l.atLeast(200)))
		must(t, l.unbroken(mark{}))
		first.stop()
	})
}

// answeredBy is the condition that an apiserver answers a few requests in a row.
func (m *member) answeredBy(want *standIn) func(context.Context) error {
	return func(ctx context.Context) error {
		for range 5 {
			who, err := m.path(0, false).get(ctx, "/whoami")
			if err != nil {
				return err
			}
			if name, _, _ := strings.Cut(who, " "); name != want.Name {
				return fmt.Errorf("%s answers, not %s", name, want.Name)
			}
		}
		return nil
	}
}

// oneDies lets something happen to the first apiserver under load, and returns how many requests that were under way have failed:
// a connection that is open to what dies dies with it, whoever carries it.
func (o *outage) oneDies(t *testing.T, m *member, next *standIn, key string, kill func()) (lost int) {
	l := startFreshLoad(t, 40, "/whoami", m.paths()...)
	defer l.stop()
	must(t, lab.Wait(t.Context(), patience, l.atLeast(80)))
	before, usual := l.mark(), l.usual()
	kill()
	died := time.Now()
	must(t, lab.Wait(t.Context(), patience, m.answeredBy(next)))
	measured("apiserver_"+key+"_left_s", time.Since(died).Seconds())
	must(t, lab.Wait(t.Context(), patience, l.atLeast(before.requests+200)))
	l.stop()
	after := l.mark()
	lost = after.failed - before.failed
	measured("apiserver_"+key+"_lost", float64(lost))
	slow, err := l.begunAfter(died, usual)
	measured("apiserver_"+key+"_slow", float64(slow))
	must(t, err)
	if slow > 0 {
		t.Errorf("%d of %d requests took more than %s, the longest %s", slow, after.requests-before.requests, usual, l.longest)
	}
	return lost
}

// change makes tunnels come and go while nobody counts them.
func (o *outage) change(t *testing.T, p *prepared) {
	that(t, "while nobody counts them tunnels end, come back and move", func(t *testing.T) {
		stopEdge(t, p.fadeEdge) // for good
		for _, e := range p.all {
			if e.agent == p.fadeEdge {
				e.gone = true
			}
		}
		for range 3 {
			must(t, p.crashEdge.KillEnvoy())
			must(t, p.cachedEdge.KillEnvoy())
			eventually(t, func(ctx context.Context) error {
				if err := p.crash.works(ctx); err != nil {
					return err
				}
				return p.cached.works(ctx)
			})
		}
		must(t, o.Gateways[0].KillEnvoy())
		eventually(t, o.oslo.works)
		must(t, lab.Wait(t.Context(), patience, p.fades.deaf))
	})
}
