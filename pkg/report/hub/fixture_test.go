package hub

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/reporttest"
)

const (
	domain   = reporttest.Domain
	patience = reporttest.Patience
)

var (
	idA, idB  = reporttest.IDA, reporttest.IDB
	edgeOf    = reporttest.EdgeOf
	gatewayOf = reporttest.GatewayOf
	newRules  = reporttest.NewRules
	newWorld  = reporttest.NewWorld

	start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// place is an address at which a hub runs.
type place struct {
	*reporttest.Place
	hub *Hub
}

func newPlace(t testing.TB, w *reporttest.World) *place {
	t.Helper()
	p := &place{Place: w.Place(t), hub: New(domain, w.Rules, w.Log)}
	p.Start(t, p.hub)
	return p
}
