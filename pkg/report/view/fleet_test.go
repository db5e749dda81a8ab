package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// script drives a fleet: each step is "second server what ...".
//
//	list a b          these are the servers
//	began             a stream begins
//	synced
//	lost              the stream has ended
//	gateway g up|down
//	edge e up|down
//	count g e n [w]   w: workers that have no tunnel
//	tick
//
// The clock of server b is 10 min ahead, and that of c 10 min behind.
type script struct {
	t testing.TB
	f *fleet
}

var clocks = map[string]time.Duration{"b": 10 * time.Minute, "c": -10 * time.Minute}

const tunnelID = "t"

func (s script) run(steps string) {
	s.t.Helper()
	for line := range strings.Lines(steps) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var second float64
		if _, err := fmt.Sscan(words[0], &second); err != nil {
			s.t.Fatal(err)
		}
		s.step(start.Add(time.Duration(second*float64(time.Second))), words[1], words[2:])
	}
}

func (s script) step(now time.Time, who string, what []string) {
	s.t.Helper()
	if who == "list" {
		s.f.list(what, now)
		return
	}
	if who == "tick" {
		s.f.tick(now)
		return
	}
	theirs := timestamppb.New(now.Add(clocks[who]))
	change := &reportv1.Change{}
	switch what[0] {
	case "lost":
		s.f.streamEnded(who, now)
		return
	case "began":
		change.What = &reportv1.Change_Began{Began: theirs}
	case "synced":
		change.What = &reportv1.Change_Synced{Synced: true}
	case "gateway":
		change.What = &reportv1.Change_Gateway{Gateway: &reportv1.GatewayState{
			Name: what[1], Connected: what[2] == "up",
			Since: theirs,
		}}
	case "edge":
		change.What = &reportv1.Change_Edge{Edge: &reportv1.EdgeState{
			Node: what[1], TunnelId: tunnelID, Connected: what[2] == "up", Since: theirs,
			Report: &reportv1.EdgeReport{LastError: "by " + who},
		}}
	case "count":
		var n, without int32
		_, _ = fmt.Sscan(strings.Join(what[3:], " "), &n, &without)
		change.What = &reportv1.Change_Tunnels{Tunnels: &reportv1.TunnelCount{
			Gateway: what[1], Node: what[2],
			TunnelId: tunnelID, Count: n, WorkersWithout: without,
		}}
	default:
		s.t.Fatalf("no such step: %q", what)
	}
	s.f.apply(who, change, now)
}

// describe returns the state of the tunnel in a line: gateways, then each edge with its tunnels, a + for a connected
// agent, after - the number of workers without a tunnel, and a ? after tunnels to a gateway that is down.
func describe(l Live) string {
	text := "unknown"
	if l.Known {
		text = "known"
	}
	text += " " + strings.Join(l.Gateways, ",")
	for _, e := range l.Edges {
		text += "; " + e.Node
		if e.Connected {
			text += "+"
		}
		for _, name := range slices.Sorted(maps.Keys(e.Gateways)) {
			text += fmt.Sprintf(" %s=%d", name, e.Gateways[name])
			if n := e.Without[name]; n > 0 {
				text += fmt.Sprintf("-%d", n)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(e.Last)) {
			text += fmt.Sprintf(" %s=%d?", name, e.Last[name])
		}
	}
	return text
}

// whole is one server that has sent two gateways and an edge.
const whole = `
	0 list a
	0 a began
	0 a count g0 e1 2
	0 a count g1 e1 2
	0 a edge e1 up
	0 a gateway g0 up
	0 a gateway g1 up
	1 a synced
`

func TestFleet(t *testing.T) {
	tests := map[string]struct{ steps, want string }{
		"nothing is known before a server has sent all reports": {
			steps: "0 list a\n 0 a began\n 0 a count g0 e1 2\n 0 a gateway g0 up", want: "unknown g0; e1 g0=2",
		},
		"all is known when it has": {steps: whole, want: "known g0,g1; e1+ g0=2 g1=2"},
		"a second server that is there from the beginning is waited for": {
			steps: "0 list a b\n 0 a began\n 0 a gateway g0 up\n 0 a synced\n 6.9 tick", want: "unknown g0",
		},
		"but only for a limited time": {
			steps: "0 list a b\n 0 a began\n 0 a gateway g0 up\n 0 a synced\n 7 tick", want: "known g0",
		},
		"counts without their gateway don't count": {
			steps: "0 list a\n 0 a began\n 0 a synced\n 1 a count g0 e1 2", want: "known ",
		},
		"tunnels change": {
			steps: whole + "2 a count g0 e1 1\n 2 a count g1 e1 0\n 2 a count g1 e2 1",
			want:  "known g0,g1; e1+ g0=1; e2 g1=1",
		},
		"a worker without a tunnel": {steps: whole + "2 a count g0 e1 2 1", want: "known g0,g1; e1+ g0=2-1 g1=2"},
		"which has one again": {
			steps: whole + "2 a count g0 e1 2 1\n 3 a count g0 e1 2",
			want:  "known g0,g1; e1+ g0=2 g1=2",
		},
		"a gateway that is silent makes what is absent unknown": {
			steps: whole + "2 a gateway g0 down\n 31.9 tick", want: "unknown g1; e1+ g0=2 g1=2",
		},
		"after a while it is down": {
			steps: whole + "2 a gateway g0 down\n 32 tick", want: "known g1; e1+ g1=2 g0=2?",
		},
		"it reconnects with other tunnels": {
			steps: whole + "2 a gateway g0 down\n 5 a count g0 e1 1\n 5 a gateway g0 up", want: "known g0,g1; e1+ g0=1 g1=2",
		},
		"it reconnects after it was down, with the same tunnels": {
			steps: whole + "2 a gateway g0 down\n 100 tick\n 200 a gateway g0 up", want: "known g0,g1; e1+ g0=2 g1=2",
		},
		"an edge agent that goes away takes no tunnel with it": {
			steps: whole + "2 a edge e1 down", want: "known g0,g1; e1 g0=2 g1=2",
		},
		"the only server goes away, and time stands still": {
			steps: whole + "2 a lost\n 1000 tick", want: "unknown g0,g1; e1+ g0=2 g1=2",
		},
		"both go away, and the first that is back waits for the other": {
			steps: "0 list a b\n 0 a began\n 0 a gateway g0 up\n 0 a synced\n 0 b began\n 0 b count g1 e1 2\n" +
				"0 b gateway g1 up\n 0 b edge e1 up\n 0 b synced\n 20 a lost\n 20 b lost\n 100 a began\n" +
				"100 a gateway g0 up\n 100 a synced",
			want: "unknown g0; e1+ g1=2",
		},
		"but not for ever": {
			steps: "0 list a b\n 0 a began\n 0 a gateway g0 up\n 0 a synced\n 0 b began\n 0 b count g1 e1 2\n" +
				"0 b gateway g1 up\n 0 b edge e1 up\n 0 b synced\n 20 a lost\n 20 b lost\n 100 a began\n" +
				"100 a gateway g0 up\n 100 a synced\n 200 tick",
			want: "known g0; e1 g1=2?",
		},
		"it reconnected, and has not sent all reports": {
			steps: whole + "2 a lost\n 300 a began\n 301 a count g0 e1 1\n 301 a gateway g0 up",
			want:  "unknown g0,g1; e1+ g0=1 g1=2",
		},
		"it reconnected and has sent all reports: changes are exact at once": {
			steps: whole + "2 a lost\n 300 a began\n 301 a count g0 e2 1\n 301 a gateway g0 up\n 307 a synced",
			want:  "known g0; e1 g1=2?; e2 g0=1",
		},
		"it was away for a moment only, and a gateway is late": {
			steps: whole + "2 a lost\n 3 a began\n 4 a count g0 e1 2\n 4 a gateway g0 up\n 4 a edge e1 up\n 10 a synced",
			want:  "unknown g0; e1+ g0=2 g1=2",
		},
		"which comes in the end": {
			steps: whole + "2 a lost\n 3 a began\n 4 a count g0 e1 2\n 4 a gateway g0 up\n 4 a edge e1 up\n 10 a synced\n 15 " +
				"a count g1 e1 3\n 15 a gateway g1 up",
			want: "known g0,g1; e1+ g0=2 g1=3",
		},
		"or not": {
			steps: whole + "2 a lost\n 3 a began\n 4 a count g0 e1 2\n 4 a gateway g0 up\n 4 a edge e1 up\n 10 a synced\n 32 " +
				"tick",
			want: "known g0; e1+ g0=2 g1=2?",
		},
		"it fails again before it has sent all reports": {
			steps: whole + "2 a lost\n 300 a began\n 301 a gateway g0 up\n 302 a lost\n 303 a began\n 304 a count g1 e1 1\n " +
				"304 a gateway g1 up\n 310 a synced",
			want: "known g1; e1 g1=1",
		},
		"a gateway that moves to a server whose clock is ahead": {
			steps: whole + "2 list a b\n 2 b began\n 2 b synced\n 5 b count g0 e1 1\n 5 b gateway g0 up",
			want:  "known g0,g1; e1+ g0=1 g1=2",
		},
		"or behind": {
			steps: whole + "2 list a c\n 2 c began\n 2 c synced\n 5 c count g0 e1 1\n 5 c gateway g0 up",
			want:  "known g0,g1; e1+ g0=1 g1=2",
		},
		"the server that it left notices that late": {
			steps: whole + "2 list a c\n 2 c began\n 2 c synced\n 5 c count g0 e1 1\n 5 c gateway g0 up\n 40 a gateway g0 " +
				"down\n 80 tick",
			want: "known g0,g1; e1+ g0=1 g1=2",
		},
		"it moves to and fro": {
			steps: whole + "2 list a b\n 2 b began\n 2 b synced\n 5 b count g0 e1 1\n 5 b gateway g0 up\n 10 a count g0 e1 " +
				"4\n 10 a gateway g0 up",
			want: "known g0,g1; e1+ g0=4 g1=2",
		},
		"one of two servers goes away with its gateways, which are looked for": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 26 tick", want: "unknown ; e1+ g0=2 g1=2",
		},
		"they have come to the other one": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 22 b count g0 e1 2\n 22 b gateway g0 up\n 23 b " +
				"count g1 e1 1\n 23 b gateway g1 up\n 23 b edge e1 up",
			want: "known g0,g1; e1+ g0=2 g1=1",
		},
		"one of them has not, while the server is still in DNS": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 22 b count g0 e1 2\n 22 b gateway g0 up\n 79 tick",
			want:  "unknown g0; e1+ g0=2 g1=2",
		},
		"but counts only for a limited time": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 22 b count g0 e1 2\n 22 b gateway g0 up\n 81 tick",
			want:  "known g0; e1 g0=2 g1=2?",
		},
		"an edge of a server that left DNS has had time to reconnect": {
			steps: whole + "2 list a b\n 2 b began\n 3 b synced\n 20 a lost\n 21 list b\n 22 b gateway g0 up\n 22 b gateway " +
				"g1 up\n 27 tick",
			want: "known g0,g1; e1",
		},
		"all servers return with other addresses, one after the other": {
			steps: whole + `2 list a b
				2 b began
				2 b synced
				20 a lost
				20 b lost
				400 list c d
				401 c began
				402 d began
				403 c count g0 e1 1
				403 c gateway g0 up
				404 d count g1 e1 1
				404 d gateway g1 up
				404 d edge e1 up
				408 c synced`,
			want: "known g0,g1; e1+ g0=1 g1=1",
		},
		"a server that never starts hides no edge for long": {
			steps: "0 list a b\n 0 a began\n 0 a count g0 e1 2\n 0 a gateway g0 up\n 0 a synced\n 8 tick",
			want:  "known g0; e1 g0=2",
		},
		"a controller that starts while a gateway is silent": {
			steps: "0 list b\n 0 b began\n 0 b count g0 e1 2\n 0 b gateway g0 down\n 0 b synced\n 29 tick",
			want:  "unknown ; e1 g0=2",
		},
		"a gateway that was down is forgotten": {
			steps: whole + "2 a gateway g0 down\n 3610 tick", want: "known g1; e1+ g1=2",
		},
		"reports of an older server about a stopped gateway are ignored": {
			steps: whole + "2 list a b\n 2 b began\n 2 b synced\n 5 b count g0 e2 1\n 5 b gateway g0 up\n 20 b gateway g0 " +
				"down\n 9 a gateway g0 down\n 60 tick",
			want: "known g1; e1+ g1=2; e2 g0=1?",
		},
		"nodes that are absent for long are removed": {
			steps: whole + "2 a edge e1 down\n 2 a count g0 e1 0\n 2 a count g1 e1 0\n 3610 tick", want: "known g0,g1",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := script{t, newFleet(report.DefaultTimes)}
			s.run(tt.steps)
			if got := describe(s.f.tunnel(tunnelID)); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestFleetReturnsTheChanges(t *testing.T) {
	tests := map[string]struct {
		steps string
		want  []string
	}{
		"the same count again is nothing":          {steps: "2 a count g0 e1 2"},
		"a worker without a tunnel is something":   {steps: "2 a count g0 e1 2 1", want: []string{tunnelID}},
		"another one is":                           {steps: "2 a count g0 e1 1", want: []string{tunnelID}},
		"a gateway that falls silent concerns all": {steps: "2 a gateway g0 down", want: []string{""}},
		"when it is down its tunnels have changed": {
			steps: "2 a gateway g0 down\n 3 tick\n 40 tick",
			want:  []string{"", tunnelID},
		},
		"a server that is away concerns all": {steps: "2 a lost", want: []string{""}},
		"one that is back with the same concerns all": {
			steps: "2 a lost\n 3 a began\n 3 a count g0 e1 2\n 3 a count g1 e1 2\n 3 a gateway g0 up\n 3 a gateway g1 up\n 9 " +
				"a synced",
			want: []string{"", tunnelID},
		},
		"a gateway that moves with its tunnels is none": {
			steps: "2 list a b\n 2 b began\n 2 b synced\n 3 b count g0 e1 2\n 3 b gateway g0 up",
		},
		"nor is time that passes": {steps: "100 tick\n 1000 tick"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := script{t, newFleet(report.DefaultTimes)}
			s.run(whole)
			s.f.take()
			s.run(tt.steps)
			if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(s.f.take()))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
