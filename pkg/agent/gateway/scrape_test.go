package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// scraped is the number of real connections that a process may have here, with both of their ends.
const scraped = 8_000

// BenchmarkScrape measures one scrape of a gateway-agent with 8,000 real connections that are tunnels, each of a
// different workload cluster. There is no Envoy, whose statistics are about 150 further series.
func BenchmarkScrape(b *testing.B) {
	dir, log := b.TempDir(), slog.New(slog.DiscardHandler)
	path := filepath.Join(dir, record.TunnelLog)
	if err := os.WriteFile(path, []byte(connections(b, scraped)), 0o600); err != nil {
		b.Fatal(err)
	}
	r, err := xdsproxy.New(filepath.Join(dir, "cache"), log)
	if err != nil {
		b.Fatal(err)
	}
	table := tunnels.New(
		tunnels.Config{Domain: domain, Log: path, Reopen: func(context.Context) error { return nil }, Logger: log},
	)
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		_ = table.Run(ctx)
	}()
	b.Cleanup(func() { stop(); <-ended })
	eventually.True(b, time.Minute, "all tunnels are known", func() error {
		if n := table.Stats().Tunnels; n != scraped {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	for _, perCluster := range []bool{false, true} {
		g := &Gateway{Table: table, tenants: newReachability(r, table, envoyadmin.Client{}, unmeasured(), log)}
		registry, own := metrics.NewRegistry(metrics.GatewayAgent), &metrics.Set{}
		own.Observe(func(emit metrics.Emit) { g.EmitTunnels(emit, perCluster) }, Figures...)
		registry.MustRegister(own)
		server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		b.Run(fmt.Sprintf("per-cluster-%v", perCluster), func(b *testing.B) { scrapes(b, server.URL) })
		server.Close()
	}
}

// connections opens connections to this process, and returns what Envoy would record.
func connections(b *testing.B, n int) (events string) {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	for i := range n {
		edge, err := net.Dial("tcp", listener.Addr().String()) //nolint:noctx // a benchmark
		if err != nil {
			b.Fatal(err)
		}
		gateway, err := listener.Accept()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _, _ = edge.Close(), gateway.Close() })
		events += fmt.Sprintf(
			`{"owner":"tunnel","local":%q,"peer":%q,"time":%q,"id":%q,"event":"tunnel_setup","fd":35,`+
				`"node":"CN=edge-%d","worker":"worker_0"}`+"\n",
			gateway.LocalAddr(),
			gateway.RemoteAddr(),
			time.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
			domain.TunnelID(fmt.Sprintf("%024d", i)),
			i,
		)
	}
	return events
}

// scrapes sends requests as Prometheus does, and reports the size of an answer and the CPU time on both sides.
func scrapes(b *testing.B, url string) {
	b.Helper()
	b.ReportAllocs()
	size, before := 0, cpuTime(b)
	for b.Loop() {
		response, err := http.Get(url) //nolint:noctx // a benchmark
		if err != nil {
			b.Fatal(err)
		}
		var text []byte
		text, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			b.Fatalf("%s, %v: %.2000s", response.Status, err, text)
		}
		size = len(text)
	}
	b.ReportMetric(float64(size), "bytes")
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
