package security

import (
	"testing"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// installation is shared by all attacks: two gateways, two xds-servers, a victim and a hostile tenant, each with an
// edge. An attack must leave it unchanged.
type installation struct {
	*world.World
	victim, tenant         *world.Member
	edgeVictim, edgeTenant *lab.Agent
}

// areas are the parts of the proof in order. The function of each area is in its own file.
var areas = []struct {
	name  string
	short bool // runs with -short too
	run   func(t *testing.T, in *installation)
}{
	{"ports", false, portAttacks},
	{"parsers", false, parserAttacks},
	{"tunnels", true, tunnelAttacks},
	{"objects", false, objectAttacks},
	{"control channel", false, controlAttacks},
	{"handshakes", false, handshakeAttacks},
	{"hangs", false, hangAttacks}, // last, because it freezes what all attacks share
}

// TestAttacksAreStopped runs every area on one installation.
func TestAttacksAreStopped(t *testing.T) {
	w := world.Start(t, &proof, lab.Options{Lean: true, WithoutWorkload: true, Gateways: 2, XDSServers: 2})
	in := &installation{World: w}
	in.victim = w.Member(t, "victim", nil)
	in.tenant = w.Member(t, "tenant", nil)
	in.edgeVictim = w.Edge(t, lab.EdgeSpec{Name: "edge-victim"}, in.victim)
	in.edgeTenant = w.Edge(t, lab.EdgeSpec{Name: "edge-tenant"}, in.tenant)
	for _, area := range areas {
		if area.short || !testing.Short() {
			t.Run(area.name, func(t *testing.T) { area.run(t, in) })
		}
	}
	w.Logs(t)
}
