package report_test

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/reporttest"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/report"
	"github.com/fairlead/fairlead/pkg/report/hub"
)

// Names that these tests share with the tests of agent, hub and view.
const (
	domain   = reporttest.Domain
	patience = reporttest.Patience
)

var (
	idA, idB   = reporttest.IDA, reporttest.IDB
	edgeOf     = reporttest.EdgeOf
	gatewayOf  = reporttest.GatewayOf
	background = reporttest.Background

	start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// quick are all times of the product divided by five. Retries are ten times as fast: on a busy machine a handshake is
// not.
var quick = report.Times{
	Settle: report.DefaultTimes.Settle / 5, Silent: report.DefaultTimes.Silent / 5, Hold: report.DefaultTimes.Hold / 5,
	Keep: report.DefaultTimes.Keep, Tick: report.DefaultTimes.Tick / 10,
	Reopen: retry.Backoff{Min: report.Reopening.Min / 10, Max: report.Reopening.Max / 10},
}

// settled returns the quick times of a hub that settles at once: its start delays no conclusion.
func settled() report.Times {
	t := quick
	t.Settle = 0
	return t
}

// unsettled returns the quick times of a hub that does not settle while a test runs.
func unsettled() report.Times {
	t := quick
	t.Settle = report.DefaultTimes.Keep
	return t
}

// world is an installation, whose hubs, agents and views run in this process.
type world struct{ *reporttest.World }

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{reporttest.NewWorld(t)}
}

// place is an address at which a hub may start and stop.
type place struct {
	*reporttest.Place
	world *world
	hub   *hub.Hub
}

func (w *world) place(t testing.TB) *place {
	t.Helper()
	p := &place{Place: w.Place(t), world: w}
	p.start(t)
	return p
}

// start runs a hub that has no reports yet.
func (p *place) start(t testing.TB) {
	t.Helper()
	p.hub = hub.New(domain, p.world.Rules, p.world.Log)
	p.hub.SetTimes(quick)
	p.Start(t, p.hub)
}
