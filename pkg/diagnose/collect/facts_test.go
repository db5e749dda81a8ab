package collect

import (
	"errors"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/observed"
)

func TestFactsOfAGateway(t *testing.T) {
	for sentence, tc := range map[string]struct {
		g            Gateway
		away, serves bool
		since        bool
	}{
		"it takes clients": {
			Gateway{Installed: true, Connected: true, Ready: true, Since: noon},
			false,
			true, false,
		},
		"it drains":                         {Gateway{Installed: true, Connected: true, Since: noon}, false, false, false},
		"its agent is away":                 {Gateway{Installed: true, Since: noon}, true, false, true},
		"the installation no longer has it": {Gateway{Since: noon}, false, false, true},
		"its agent went away while it was":  {Gateway{Installed: true, Ready: true, Since: noon}, true, false, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			if tc.g.Away() != tc.away || tc.g.Serves() != tc.serves || tc.g.DisconnectedSince().IsZero() == tc.since {
				t.Errorf("away %t, serves %t, since %s", tc.g.Away(), tc.g.Serves(), tc.g.DisconnectedSince())
			}
		})
	}
}

func TestEdgesThatDoNotReport(t *testing.T) {
	f := Fleet{
		Servers: []Server{{Settled: true}, {Err: errors.New("refused")}},
		Edges:   []observed.Edge{{Node: "reports", Connected: true}, {Node: "left"}, {Node: "without tunnel"}},
		Tunnels: []Tunnel{{Node: "reports"}, {Node: "left"}, {Node: "left"}, {Node: "never came"}, {Node: "revoked"}},
	}
	revoked := func(node string) bool { return node == "revoked" }
	if got := f.Unreported(revoked); !slices.Equal(got, []string{"left", "never came"}) {
		t.Errorf("got %v", got)
	}
	if errs := f.Silent(); len(errs) != 1 || !errors.Is(errs[0], f.Servers[1].Err) {
		t.Errorf("silent: %v", errs)
	}
	f.Servers[0].Settled = false
	if got := f.Unreported(revoked); f.Settled() || got != nil {
		t.Errorf("before agents had time to report: %v", got)
	}
}
