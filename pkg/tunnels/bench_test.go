package tunnels

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

const many = 10_000

// BenchmarkLoad measures the start of an agent beside an Envoy with 10,000 tunnels.
func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	var events strings.Builder
	for i := range many {
		events.WriteString(setup(i, fmt.Sprintf("edge-%d", i)))
	}
	newBed(b, dir).write(b, events.String())
	for b.Loop() {
		table := newBed(b, dir)
		table.poll(noon)
		if n := table.Stats().Tunnels; n != many {
			b.Fatalf("%d tunnels", n)
		}
	}
}

// BenchmarkOneEvent measures one event among 10,000 tunnels, with a reader of changes.
func BenchmarkOneEvent(b *testing.B) {
	table := newBed(b, b.TempDir())
	for i := range many {
		table.write(b, setup(i, "edge-1"))
	}
	table.poll(noon)
	table.publish()
	_, version := table.Snapshot()
	for i := 0; b.Loop(); i++ {
		table.write(b, setup(1, fmt.Sprintf("edge-%d", i)))
		table.poll(noon)
		var ok bool
		if _, _, version, ok = table.Changes(b.Context(), version); !ok {
			b.Fatal("changes are not known")
		}
	}
}

// BenchmarkRepair measures a repair and one event among 10,000 edges that are all dialling, on a gateway with four
// workers.
func BenchmarkRepair(b *testing.B) {
	table := newBed(b, b.TempDir())
	table.repairs = newRepairs(rules{workers: 4})
	for i := range many {
		for j := range 7 { // one worker has only one
			table.write(
				b,
				lineOf(
					j%4, eventSetup, fmt.Sprintf("198.18.%d.%d:%d", i>>8, i&255, 40000+j), nowhere, fmt.Sprintf("edge-%d", i), idA,
					noon,
				),
			)
		}
	}
	table.poll(noon)
	table.publish()
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			table.repair(noon)
		}
	})
	if n := len(table.repairs.uneven); n != many || table.Stats().Moved > 0 {
		b.Errorf("%d edges lack a tunnel, %+v", n, table.Stats())
	}
}

// real is the number of connections that a process may have here, with both of their ends.
const real = 8_000

// BenchmarkSockets has 8,000 real connections: twice as many sockets as on a gateway.
func BenchmarkSockets(b *testing.B) {
	needsRight(b)
	e := newEcho(b, "tcp", "127.0.0.1:0")
	table := newBed(b, b.TempDir())
	for i := range real {
		w := e.dial(b, e.Addr().String())
		table.write(b, w.event(eventSetup, fmt.Sprintf("edge-%d", i%100), idA))
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			again := New(table.config)
			again.poll(noon)
			again.publish()
			if n := again.Stats().Tunnels; n != real {
				b.Fatalf("%d tunnels", n)
			}
		}
	})
	table.poll(noon)
	table.publish()
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			table.check()
		}
	})
	b.Run("bind", func(b *testing.B) {
		for b.Loop() {
			for _, e := range table.live {
				table.unbound[e], e.socket = true, nil
			}
			table.bind()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*real), "ns/tunnel")
	})
	node := 0
	b.Run("deny 100 tunnels of one node", func(b *testing.B) {
		for b.Loop() {
			table.Deny(model.Denied{Edges: []model.EdgeRef{{Node: fmt.Sprintf("edge-%d", node), ID: idA}}})
			node++
			table.closeDenied()
		}
		if cut := table.Stats().Cut; cut != uint64(min(node, 100)*real/100) {
			b.Errorf("%d were cut", cut)
		}
	})
}
