package xds_test

import (
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds"
)

// BenchmarkAdmit measures decisions about edges with 10,000 tunnels, 100 revoked edges and 1,000 ended tunnels.
func BenchmarkAdmit(b *testing.B) {
	s, subjects := large(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		_ = s.Admit(subjects[i%len(subjects)])
		i++
	}
}

// BenchmarkRevoke measures the change of one Tunnel among 10,000 that revokes an edge.
func BenchmarkRevoke(b *testing.B) {
	s, _ := large(b)
	i := 0
	for b.Loop() {
		wc := workload("c1")
		wc.Revoked = []string{fmt.Sprintf("edge-%d", i)}
		s.Publish(wc.Key, &wc)
		i++
	}
}

// BenchmarkStatus measures client status of 10,000 workload clusters over gRPC: of one gateway with all of its
// resources, of one of its resources by name, and without contents, as `fairlead config sync` requests it.
func BenchmarkStatus(b *testing.B) {
	var all []model.WorkloadCluster
	for i := range 10_000 {
		all = append(all, workload(fmt.Sprintf("c%d", i)))
	}
	bed := newBed(b, all...)
	g := bed.envoy(b, gateway)
	g.fetch(b, cds)
	g.fetch(b, lds)
	client := statusOver(b, bed)
	for name, r := range map[string]*statusv3.ClientStatusRequest{
		"contents": {},
		"without":  {ExcludeResourceContents: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			size, before := 0, cpuTime(b)
			for b.Loop() {
				answer, err := client.FetchClientStatus(b.Context(), r)
				if err != nil || len(answer.GetConfig()) != 1 || len(answer.GetConfig()[0].GetGenericXdsConfigs()) < 10_000 {
					b.Fatalf("%d nodes, %v", len(answer.GetConfig()), err)
				}
				size = proto.Size(answer)
			}
			b.ReportMetric(float64(size), "bytes")
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
	b.Run("name", func(b *testing.B) {
		b.ReportAllocs()
		before := cpuTime(b)
		defer func() { b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op") }()
		for b.Loop() {
			n := 0
			err := bed.Status().
				Resources([]string{all[7].Hostname}, true, func(c *statusv3.ClientConfig) error {
					n += len(
						c.GetGenericXdsConfigs())
					return nil
				})
			if err != nil || n != 1 {
				b.Fatalf("%d resources, %v", n, err)
			}
		}
	})
}

// statusOver returns a client of the client status service over a connection.
func statusOver(b *testing.B, bed *bed) statusv3.ClientStatusDiscoveryServiceClient {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	const most = 64 << 20
	server := grpc.NewServer(grpc.MaxSendMsgSize(most))
	statusv3.RegisterClientStatusDiscoveryServiceServer(server, bed.Status())
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(server.Stop)
	conn, err := grpc.NewClient(
		listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most)),
	)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return statusv3.NewClientStatusDiscoveryServiceClient(conn)
}

// cpuTime returns the CPU time that the process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func large(b *testing.B) (*xds.Server, []model.Subject) {
	b.Helper()
	s := xds.NewServer(inst, slog.New(slog.DiscardHandler))
	b.Cleanup(s.Close)
	ended := map[string]time.Time{}
	for i := range 1000 {
		ended[workload(fmt.Sprintf("e%d", i)).ID] = time.Now().Add(time.Hour)
	}
	s.Ended(ended)
	var all []model.WorkloadCluster
	var subjects []model.Subject
	for i := range 10_000 {
		wc := workload(fmt.Sprintf("c%d", i))
		if i < 100 {
			wc.Revoked = []string{fmt.Sprintf("edge-revoked-%d", i)}
		}
		all = append(all, wc)
		subjects = append(subjects, node(wc, fmt.Sprintf("edge-%d", i)))
	}
	s.Replace(all)
	return s, subjects
}
