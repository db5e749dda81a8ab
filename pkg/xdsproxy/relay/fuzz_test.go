package relay

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// universe is the number of names that all upstreams together may use of one kind.
const universe = 3*4 + 2

// script turns bytes into steps. It is at its end when there are no more bytes.
type script struct{ data []byte }

func (s *script) pick(n int) int {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int(b) % n
}

// FuzzRelay runs random sequences of events, with effects that fail and agents that end between two effects. Each event
// is checked, see world, and in the end everything must agree.
func FuzzRelay(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 1, 0, 2, 0, 0, 3, 4, 0, 5, 0})
	for seed := range 16 {
		data := make([]byte, 400)
		x := uint32(seed*2654435761 + 1)
		for i := range data {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			data[i] = byte(x >> 8)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, w := &script{data[:min(len(data), 4000)]}, newWorld(t)
		for len(s.data) > 0 {
			w.step(s)
		}
		w.converge()
	})
}

// step does what the script says.
func (w *world) step(s *script) {
	servers := w.sorted()
	server, k := servers[s.pick(len(servers))], Kind(s.pick(int(Kinds)))
	switch s.pick(24) {
	case 0, 1, 2:
		names := []string{"shared", "contested"}
		for i := range 4 {
			names = append(names, fmt.Sprint(server.name, i))
		}
		properties := []string{fine, fine, fine, "", bad, deadly, faulty}
		addresses := []string{"", "", "p1", "p2"}
		name, property := names[s.pick(len(names))], properties[s.pick(len(properties))]
		if address := addresses[s.pick(len(addresses))]; server.member {
			w.want(server, k, name, property, address)
		}
	case 3:
		w.open(server)
	case 4, 5, 6:
		w.respond(server, k)
	case 7:
		w.lose(server, []codes.Code{codes.Unavailable, codes.InvalidArgument}[s.pick(2)])
	case 8:
		w.connect()
		for k := range Kinds {
			w.subscribe(k)
		}
	case 9, 10, 11:
		w.reply(k)
	case 12:
		w.wait(time.Duration(s.pick(20)) * time.Second)
	case 13:
		w.work(s.pick(4) == 0, s.pick(2) == 0)
	case 14:
		w.do(Ran{})
	case 15, 16, 17, 18:
		w.flow()
	default:
		w.disturb(s, server, k)
	}
}

// disturb does what happens less often.
func (w *world) disturb(s *script, server *xdsServer, k Kind) {
	switch s.pick(15) {
	case 0:
		w.dies()
	case 1:
		if id := w.envoy.session; id != 0 {
			w.envoy.disconnect()
			w.do(Detached{id})
		}
	case 2:
		w.envoy = newEnvoyProcess()
		w.do(Ended{})
	case 3:
		w.log = append(w.log, "the agent ends")
		w.start()
	case 4:
		w.log = append(w.log, "the agent and Envoy end")
		w.envoy = newEnvoyProcess()
		w.start()
	case 5:
		w.cut = s.pick(6) // in the next events
	case 6:
		w.remove(server)
	case 7:
		for _, server := range w.servers {
			server.member = true
		}
	case 8:
		w.do(Reformed{k, []string{"shared", "a0", "none"}})
	case 9:
		w.do(Flushed{})
	case 10:
		w.broken = s.pick(2) == 0
	case 11: // of streams that are not open
		w.do(Received{Upstream: server.name, Stream: 1 << 60, Kind: k, Nonce: "old", Changes: Set{"a0": nil}})
		w.do(Requested{Session: 1 << 60, Kind: k, Nonce: "1"})
		w.do(Closed{Upstream: server.name, Stream: 1 << 60})
		w.do(Detached{1 << 60})
	case 12: // Envoy reconnects before its previous stream is known to have ended
		w.envoy.disconnect()
		w.connect()
	case 13: // the check has changed
		vetted := Vetted{Upstream: server.name}
		for _, res := range w.relay.Present(server.name)[k] {
			if len(res.Name)%2 == s.pick(2) {
				vetted.Faults = append(vetted.Faults, Fault{k, res.Name, res.Version, "it is forbidden"})
			}
		}
		if server.member {
			w.do(vetted)
		}
	case 14:
		if !w.envoy.asked[k] {
			return
		}
		w.do(Requested{Session: w.envoy.session, Kind: k, Nonce: "never sent"})
	}
}
