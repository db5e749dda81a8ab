package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/clock"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// wrong is the error of the clocks.
const wrong = 10 * time.Minute

// builtClocks builds the programs with wrong clocks once, while other tests run.
var builtClocks = sync.OnceValues(func() (*clock.Clocks, error) { return clock.NewClocks(context.Background()) })

// shortLife is a lifetime of certificates of only 16 seconds by a clock that is ahead.
const shortLife = wrong + 16*time.Second

// clocks proves that clocks may be wrong by 10 minutes on either side.
func (d *doors) clocks(t *testing.T) {
	clocks, err := builtClocks()
	must(t, err)
	members := map[time.Duration]*world.Member{
		wrong:  d.Member(t, "ahead", nil),
		-wrong: d.Member(t, "late", nil),
		0:      d.Member(t, "right", nil),
	}
	for by, m := range members {
		if by == 0 {
			d.Edge(t, lab.EdgeSpec{Name: "edge-right"}, m)
			continue
		}
		that(t, "an edge whose clock is 10 minutes "+m.Name+" enrols and carries traffic", func(t *testing.T) {
			edge := d.wrongEdge(t, clocks, m, by)
			measured("clock_"+m.Name+"_s", world.Took(t, patience, m.Works).Seconds())
			checkClocks(t, d.LogFile("edge-"+m.Name), edge, by)
		})
	}
	all := func(ctx context.Context) error {
		return errors.Join(members[wrong].Works(ctx), members[-wrong].Works(ctx), members[0].Works(ctx))
	}
	that(
		t,
		"gateways whose clocks are 10 minutes wrong carry traffic of all edges",
		func(t *testing.T) {
			d.wrongGateways(t, clocks, all)
		},
	)
	usual := d.Controller.Process().Spec
	d.Restart(t, d.Controller, d.ControllerReady, func(s *proc.Spec) {
		// Tokens must also live longer than the error of the clocks.
		s.Args = append(slices.Clone(s.Args), "--leaf-lifetime="+shortLife.String(), "--token-lifetime=1h")
	})
	that(
		t,
		"an edge whose clock is 10 minutes ahead renews leaves that seem to be valid for seconds",
		func(t *testing.T) {
			hurried := d.Member(t, "hurried", nil)
			d.wrongEdge(t, clocks, hurried, wrong)
			eventually(t, renewals(d.LogFile("edge-hurried"), 3))
			must(t, hurried.Works(t.Context()))
		},
	)
	for name, by := range map[string]time.Duration{"ahead": wrong, "late": -wrong} {
		that(t, "edges enrol while the clocks of the management cluster are 10 minutes "+name, func(t *testing.T) {
			d.wrongManagement(t, clocks, "joins-"+name, by, all)
		})
	}
	d.Restart(t, d.Controller, d.ControllerReady, func(s *proc.Spec) { *s = usual })
}

// wrongEdge starts an edge with a wrong clock.
func (d *doors) wrongEdge(t *testing.T, clocks *clock.Clocks, m *world.Member, by time.Duration) *lab.Agent {
	t.Helper()
	return d.StartEdge(
		t, lab.EdgeSpec{Name: "edge-" + m.Name, Program: clocks.Program("edge-agent"), Env: clocks.Env(by)}, m,
	)
}

// wrongGateways makes one gateway's clock 10 minutes fast and the other's 10 minutes slow for a while.
func (d *doors) wrongGateways(t *testing.T, clocks *clock.Clocks, works func(context.Context) error) {
	var usual []proc.Spec
	restart := func(change func(i int, s *proc.Spec)) {
		for i, gateway := range d.Gateways {
			gateway.Hold()
			must(t, gateway.KillEnvoy())
			gateway.Change(func(s *proc.Spec) { change(i, s) })
			gateway.Resume()
		}
	}
	offs := []time.Duration{wrong, -wrong}
	restart(func(i int, s *proc.Spec) {
		usual = append(usual, *s)
		wrongClock(clocks, "gateway-agent", offs[i])(s)
	})
	defer func() {
		restart(func(i int, s *proc.Spec) { *s = usual[i] })
		eventually(t, works)
	}()
	measured("clock_gateways_s", world.Took(t, patience, works).Seconds())
	for i, by := range offs {
		checkClocks(t, d.LogFile(fmt.Sprintf("gateway-%d", i)), d.Gateways[i], by)
	}
}

// wrongClock gives a service another clock.
func wrongClock(clocks *clock.Clocks, program string, by time.Duration) func(*proc.Spec) {
	return func(s *proc.Spec) { s.Program, s.Env = clocks.Program(program), clocks.Env(by) }
}

// wrongManagement lets a new edge join while the clocks of controller and xds-server are wrong, and then restores them.
func (d *doors) wrongManagement(
	t *testing.T, clocks *clock.Clocks, name string, by time.Duration, others func(context.Context) error,
) {
	controller, xds := d.Controller.Process().Spec, d.XDSServers[0].Process().Spec
	defer func() {
		d.Restart(t, d.Controller, d.ControllerReady, func(s *proc.Spec) { *s = controller })
		d.Restart(t, d.XDSServers[0], d.XDSServerReady, func(s *proc.Spec) { *s = xds })
	}()
	d.Restart(t, d.Controller, d.ControllerReady, wrongClock(clocks, "controller", by))
	d.Restart(t, d.XDSServers[0], d.XDSServerReady, wrongClock(clocks, "xds-server", by))
	joins := d.Member(t, name, nil)
	d.StartEdge(t, lab.EdgeSpec{Name: "edge-" + name}, joins)
	measured("clock_management_s", world.Took(t, 2*patience, joins.Works).Seconds())
	must(t, others(t.Context()))
}

// renewals returns a condition that is nil once a log reports at least the given number of new certificates.
func renewals(log string, least int) func(context.Context) error {
	return func(context.Context) error {
		lines, err := proc.Lines(log, `msg="certificate obtained"`)
		if err == nil && len(lines) < least {
			err = fmt.Errorf("%s tells of %d certificates, want %d", filepath.Base(log), len(lines), least)
		}
		return err
	}
}

var (
	logTime     = regexp.MustCompile(`^time=(\S+) `)
	lastUpdated = regexp.MustCompile(`"last_updated": ?"([^"]+)"`)
)

// checkClocks fails the test unless the clocks of an agent and its Envoy have the intended error. Otherwise the test
// would prove nothing.
func checkClocks(t *testing.T, log string, agent *lab.Agent, by time.Duration) {
	t.Helper()
	lines, err := proc.Lines(log, "time=", "level=")
	must(t, err)
	logged, err := time.Parse(time.RFC3339, logTime.FindStringSubmatch(lines[len(lines)-1])[1])
	must(t, err)
	if off := time.Until(logged); (off - by).Abs() > time.Minute {
		t.Errorf("the agent's clock is off by %s, want %s", off, by)
	}
	dump, err := adminGet(t.Context(), agent.StateDir, "/config_dump?resource=dynamic_active_clusters")
	must(t, err)
	times := lastUpdated.FindStringSubmatch(dump)
	if times == nil {
		t.Fatalf("Envoy says nothing of when its configuration came: %.200s", dump)
	}
	updated, err := time.Parse(time.RFC3339, times[1])
	must(t, err)
	if off := time.Until(updated); (off - by).Abs() > 2*time.Minute {
		t.Errorf("Envoy's clock is off by %s, want %s", off, by)
	}
}

// adminGet sends a request to the admin interface of the Envoy in a folder.
func adminGet(ctx context.Context, dir, path string) (string, error) {
	dialer := net.Dialer{}
	client := &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", filepath.Join(dir, "admin.sock"))
			},
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy"+path, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return string(body), errors.Join(err, response.Body.Close())
}
