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
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
)

// wrong is by how much clocks are wrong.
const wrong = 10 * time.Minute

// builtClocks builds the programs with wrong clocks once, beside what else runs.
var builtClocks = sync.OnceValues(func() (*lab.Clocks, error) { return lab.NewClocks(context.Background()) })

// clocks proves that clocks may be 10 minutes off, on either side: the Tests paragraph. Certificates end 10 minutes and some
// seconds after they were issued, so that one that is 10 minutes ahead has to renew all the time.
func (d *doors) clocks(t *testing.T) {
	clocks, err := builtClocks()
	must(t, err)
	d.restart(t, d.Controller, d.ControllerReady, func(s *lab.Spec) { s.Args = append(s.Args, "--leaf-lifetime=10m16s") })
	ahead, late := d.member(t, "ahead", nil), d.member(t, "late", nil)
	for _, tc := range []struct {
		name string
		m    *member
		by   time.Duration
	}{{"ahead", ahead, wrong}, {"late", late, -wrong}} {
		that(t, "an edge whose clock is 10 minutes "+tc.name+" enrols and carries traffic", func(t *testing.T) {
			edge := d.startEdge(t, lab.EdgeSpec{Name: "edge-" + tc.name, Program: clocks.Program("edge-agent"), Env: clocks.Env(tc.by)}, tc.m)
			measured("clock_"+tc.name+"_s", took(t, patience, tc.m.works).Seconds())
			checkClocks(t, d.LogFile("edge-"+tc.name), edge, tc.by)
		})
	}
	that(t, "an edge whose clock is 10 minutes ahead renews certificates that it thinks live for seconds", func(t *testing.T) {
		eventually(t, renewals(d.LogFile("edge-ahead"), 3))
		must(t, errors.Join(ahead.works(t.Context()), late.works(t.Context())))
	})
	for i, by := range []time.Duration{wrong, -wrong} {
		sides := []string{"the controller is 10 minutes ahead and the xds-server 10 minutes late", "the controller is 10 minutes late and the xds-server 10 minutes ahead"}
		that(t, "while "+sides[i]+", edges enrol, renew and carry traffic", func(t *testing.T) { d.wrongManagement(t, clocks, by, ahead, late) })
	}
	that(t, "gateways whose clocks are 10 minutes off, one each way, carry traffic of right and wrong edges", func(t *testing.T) {
		for i, by := range []time.Duration{wrong, -wrong} {
			gateway := d.Gateways[i]
			gateway.Hold()
			must(t, gateway.KillEnvoy())
			gateway.Change(wrongClock(clocks, "gateway-agent", by))
			gateway.Resume()
		}
		measured("clock_gateways_s", took(t, patience, func(ctx context.Context) error {
			return errors.Join(ahead.works(ctx), late.works(ctx))
		}).Seconds())
		for i, by := range []time.Duration{wrong, -wrong} {
			checkClocks(t, d.LogFile(fmt.Sprintf("gateway-%d", i)), d.Gateways[i], by)
		}
	})
}

// wrongClock changes a service into one with another clock.
func wrongClock(clocks *lab.Clocks, program string, by time.Duration) func(*lab.Spec) {
	return func(s *lab.Spec) { s.Program, s.Env = clocks.Program(program), clocks.Env(by) }
}

// restart starts a service again with something changed, and waits until it is ready.
func (w *world) restart(t *testing.T, s *lab.Service, ready func(context.Context) error, change func(*lab.Spec)) {
	t.Helper()
	s.Hold()
	s.Change(change)
	s.Resume()
	eventually(t, ready)
}

// wrongManagement lets a new edge join while the controller's clock is off by something and the xds-server's by the opposite.
// What they were is restored.
func (d *doors) wrongManagement(t *testing.T, clocks *lab.Clocks, by time.Duration, running ...*member) {
	controller, xds := d.Controller.Process().Spec, d.XDSServers[0].Process().Spec
	d.restart(t, d.Controller, d.ControllerReady, wrongClock(clocks, "controller", by))
	d.restart(t, d.XDSServers[0], d.XDSServerReady, wrongClock(clocks, "xds-server", -by))
	name := fmt.Sprintf("joins-%d", int(by.Seconds())+int(wrong.Seconds()))
	joins := d.member(t, name, nil)
	d.startEdge(t, lab.EdgeSpec{Name: "edge-" + name}, joins)
	measured("clock_management_s", took(t, 2*patience, joins.works).Seconds())
	least := 0
	if by < 0 {
		least = 2 // what the late controller signs ends in seconds
	}
	eventually(t, renewals(d.LogFile("edge-"+name), 1+least))
	for _, m := range running {
		must(t, m.works(t.Context()))
	}
	d.restart(t, d.Controller, d.ControllerReady, func(s *lab.Spec) { *s = controller })
	d.restart(t, d.XDSServers[0], d.XDSServerReady, func(s *lab.Spec) { *s = xds })
}

// renewals is the condition that a log tells of at least some new certificates.
func renewals(log string, least int) func(context.Context) error {
	return func(context.Context) error {
		lines, err := lab.Lines(log, `msg="new certificate"`)
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

// checkClocks fails the test if the clocks of an agent and its Envoy are not wrong as they should be: then nothing was proven.
func checkClocks(t *testing.T, log string, agent *lab.Agent, by time.Duration) {
	t.Helper()
	lines, err := lab.Lines(log, "time=", "level=")
	must(t, err)
	said, err := time.Parse(time.RFC3339, logTime.FindStringSubmatch(lines[len(lines)-1])[1])
	must(t, err)
	if off := time.Until(said); (off - by).Abs() > time.Minute {
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

// adminGet asks the Envoy in a folder.
func adminGet(ctx context.Context, dir, path string) (string, error) {
	dialer := net.Dialer{}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", filepath.Join(dir, "admin.sock"))
	}}}
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
