package hub

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/xds"
)

// BenchmarkScrape is one scrape of an xds-server with 10,000 workload clusters, each with an edge and a tunnel to each
// of two gateways.
func BenchmarkScrape(b *testing.B) {
	at := func(port uint16) model.Endpoint { return model.Endpoint{Host: "10.0.0.9", Port: port} }
	ads := xds.NewServer(model.Installation{Domain: domain, Public: at(443), Control: at(18000), Gateways: []model.Gateway{
		{Name: "gateway-0", Peer: at(444)}, {Name: "gateway-1", Peer: at(445)},
	}}, slog.New(slog.DiscardHandler))
	b.Cleanup(ads.Close)
	hub := New(domain, newRules(), slog.New(slog.DiscardHandler))
	fill(b, ads, hub)
	for _, perCluster := range []bool{false, true} {
		r := metrics.NewRegistry(metrics.XDSServer)
		r.MustRegister(ads.Metrics(), hub.Metrics())
		if perCluster {
			r.MustRegister(ads.ClusterMetrics(), hub.ClusterMetrics(ads.Keys))
		}
		server := httptest.NewServer(promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
		b.Run(fmt.Sprintf("per-cluster-%v", perCluster), func(b *testing.B) { scrapes(b, server.URL) })
		server.Close()
	}
}

// fill adds 10,000 workload clusters to both.
func fill(b *testing.B, ads *xds.Server, hub *Hub) {
	b.Helper()
	var clusters []model.WorkloadCluster
	gateways := [2]*reportv1.GatewayReport{{Snapshot: true}, {Snapshot: true}}
	end := timestamppb.New(time.Now().Add(time.Hour))
	for i := range 10_000 {
		id, name, node := fmt.Sprintf("%024d", i), fmt.Sprintf("cluster-%d", i), fmt.Sprintf("edge-%d", i)
		clusters = append(clusters, model.WorkloadCluster{
			Key: model.Key{Namespace: "production", Name: name}, ID: id, Hostname: name + ".production.tunnels.example.com",
			APIServer: model.Endpoint{Host: "10.1.0.1", Port: 6443},
		})
		for _, r := range gateways {
			r.Tunnels = append(r.Tunnels, &reportv1.Tunnel{
				Key: fmt.Sprintf("198.51.100.1:%d>192.0.2.1:443", i), Node: node,
				TunnelId: id,
			})
		}
		s := &session{subject: edgeOf(node, id), end: func(error) {}}
		hub.begin(s)
		if err := hub.edgeReport(s, &reportv1.EdgeReport{ApiServer: &reportv1.APIServer{
			Healthy:             true,
			CertificateNotAfter: end,
		}}); err != nil {
			b.Fatal(err)
		}
	}
	ads.Replace(clusters)
	for i, r := range gateways {
		s := &session{subject: gatewayOf(fmt.Sprintf("gateway-%d", i)), end: func(error) {}}
		hub.begin(s)
		if err := hub.gatewayReport(s, r); err != nil {
			b.Fatal(err)
		}
	}
}

// scrapes sends requests as Prometheus does, and reports the size of an answer and its CPU time at both ends.
func scrapes(b *testing.B, url string) {
	b.Helper()
	b.ReportAllocs()
	size, before := int64(0), cpuTime(b)
	for b.Loop() {
		response, err := http.Get(url) //nolint:noctx // a benchmark
		if err != nil {
			b.Fatal(err)
		}
		size, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			b.Fatalf("%s, %v", response.Status, err)
		}
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
