package xdsproxy_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

const benchClusters = 10_000

// heavy returns n Envoy clusters of the same size as on a gateway.
func heavy(n int) map[string]types.Resource {
	all := make([]types.ResourceWithName, n)
	for i := range all {
		c := cluster(fmt.Sprintf("cluster-%05d.prod.tunnels.example.com", i), 1)
		c.AltStatName = strings.Repeat("x", 1900) + c.Name
		all[i] = c
	}
	return named(all...)
}

// heap returns the heap in use, in MB.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkFirst measures a gateway that gets 10,000 Envoy clusters for the first time, from the connect to Envoy's
// ACK.
func BenchmarkFirst(b *testing.B) {
	s := newServer(b, heavy(benchClusters), nil)
	for b.Loop() {
		bed := newBed(b, b.TempDir())
		bed.follow(b, "gateway-0", s, nil)
		e := bed.envoy(b, nil)
		e.subscribe(b, cds)
		expect(b, "sent", len(e.next(b).GetResources()), benchClusters)
		b.StopTimer()
		bed.stop()
		b.StartTimer()
	}
}

// BenchmarkFromDisk measures a gateway that starts without an xds-server: loading, and sending to Envoy.
func BenchmarkFromDisk(b *testing.B) {
	dir := b.TempDir()
	fill(b, dir)
	before := heap()
	loaded := newBed(b, dir)
	held := heap() - before
	for b.Loop() {
		bed := newBed(b, dir)
		e := bed.envoy(b, nil)
		e.subscribe(b, cds)
		expect(b, "sent", len(e.next(b).GetResources()), benchClusters)
		b.StopTimer()
		bed.stop()
		b.StartTimer()
	}
	b.ReportMetric(held, "MB-held")
	runtime.KeepAlive(loaded)
}

func fill(b *testing.B, dir string) {
	b.Helper()
	s := newServer(b, heavy(benchClusters), nil)
	bed := newBed(b, dir)
	bed.follow(b, "gateway-0", s, nil)
	e := bed.envoy(b, nil)
	e.subscribe(b, cds)
	e.next(b)
	bed.file(b, "gateway-0.clusters.cache", "cluster-00000")
	bed.stop()
	s.grpc.Stop()
}

// BenchmarkChange measures a change of one of 10,000 Envoy clusters until Envoy has it, including the write to disk.
func BenchmarkChange(b *testing.B) {
	s := newServer(b, heavy(benchClusters), nil)
	bed := newBed(b, b.TempDir())
	bed.follow(b, "gateway-0", s, nil)
	e := bed.envoy(b, nil)
	e.subscribe(b, cds)
	e.next(b)
	bed.is(b, "gateway-0", "is connected", func(s xdsproxy.State) bool { return s.Connected })
	for i := 2; b.Loop(); i++ {
		s.set(b, cluster("one", i))
		expect(b, "sent", len(e.next(b).GetResources()), 1)
	}
}

// BenchmarkReconnect measures an Envoy that reconnects with all its resources.
func BenchmarkReconnect(b *testing.B) {
	dir := b.TempDir()
	fill(b, dir)
	bed := newBed(b, dir)
	e := bed.envoy(b, nil)
	e.subscribe(b, cds)
	e.next(b)
	for b.Loop() {
		e = bed.envoy(b, e.have)
		e.subscribe(b, cds)
		expect(b, "sent", len(e.next(b).GetResources()), 0)
	}
}
