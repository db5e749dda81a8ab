package controlchannel_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// many is how many control channels the memory benchmarks open: 1,000, or what manyVariable says.
var many = 1000

// manyVariable is the environment variable that overrides many, for example with 10000.
const manyVariable = "MEMORY_CHANNELS"

// crowdVariable makes the test binary run the edges of a memory benchmark in another process, so that their memory
// does not count as the server's.
const crowdVariable = "FAIRLEAD_TEST_CROWD"

func TestMain(m *testing.M) {
	if os.Getenv(crowdVariable) != "" {
		if err := follow(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(manyVariable); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil || many < 1 {
			fmt.Fprintf(os.Stderr, "%s: %q is no number of control channels\n", manyVariable, text)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// crowd is the input of the crowd's process: the server's address and roots, and the identities of the edges.
type crowd struct {
	Address string
	Roots   []byte
	Key     []byte
	Chains  [][]byte // one per edge
}

// BenchmarkMemory measures the memory of control channels in the xds-server: an edge with its resources and its
// report, through the public port. The other cases are the same connections and streams at a plain gRPC server that
// stores nothing, which is the minimum.
func BenchmarkMemory(b *testing.B) {
	b.Run("channel", func(b *testing.B) {
		testbed := newTestbed(b, controlchannel.Bounds{})
		var all []model.WorkloadCluster
		for i := range many {
			all = append(all, workload(fmt.Sprintf("m%d", i)))
		}
		testbed.ads.Replace(all)
		measureMemory(b, testbed, testbed.address)
	})
	for name, options := range map[string][]grpc.ServerOption{
		"grpc-go": nil,
		"grpc-go with small buffers": {
			grpc.ReadBufferSize(0), grpc.WriteBufferSize(4 << 10),
			grpc.StaticStreamWindowSize(64 << 10), grpc.StaticConnWindowSize(64 << 10), grpc.MaxHeaderListSize(16 << 10),
		},
	} {
		b.Run(name, func(b *testing.B) {
			testbed := newTestbed(b, controlchannel.Bounds{})
			measureMemory(b, testbed, bare(b, testbed, options...))
		})
	}
}

// measureMemory starts a crowd, and reports the memory per edge.
func measureMemory(b *testing.B, testbed *testbed, address string) {
	b.Helper()
	n := float64(many)
	for b.Loop() { // one iteration
		before, beforeRSS := memory(b)
		end := testbed.crowd(b, address, many)
		after, afterRSS := memory(b)
		each := func(a, b uint64) float64 { return (float64(a) - float64(b)) / n / 1e3 }
		b.ReportMetric(each(after.HeapAlloc, before.HeapAlloc), "heap-KB/edge")
		b.ReportMetric(each(after.StackInuse, before.StackInuse), "stack-KB/edge")
		b.ReportMetric(each(after.HeapInuse, before.HeapInuse), "heapinuse-KB/edge")
		b.ReportMetric(float64(afterRSS-beforeRSS)/n/1e3, "RSS-KB/edge")
		b.ReportMetric(float64(runtime.NumGoroutine())/n, "goroutines/edge")
		end()
	}
}

// memory returns the statistics after garbage collection, and the resident size before it.
func memory(b *testing.B) (stats runtime.MemStats, rss int) {
	b.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	must(b, err)
	pages, err := strconv.Atoi(strings.Fields(string(data))[1])
	must(b, err)
	for range 6 { // each run halves stacks that are too large
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats, pages * os.Getpagesize()
}

// crowd starts edges in another process, and returns a function that ends them.
func (b *testbed) crowd(t testing.TB, address string, n int) (end func()) {
	t.Helper()
	key, err := certs.NewKey()
	must(t, err)
	c := crowd{Address: address, Roots: b.ca.CertPEM()}
	for i := range n {
		s := model.Subject{Role: model.RoleEdge, Node: fmt.Sprintf("edge-%d", i), ID: workload(fmt.Sprintf("m%d", i)).ID}
		chain, err := b.ca.Issue(key.Public(), leaf(s, time.Hour))
		must(t, err)
		identity, err := certs.NewIdentity(chain, key)
		must(t, err)
		if c.Key == nil {
			c.Key, err = identity.KeyPEM()
			must(t, err)
		}
		c.Chains = append(c.Chains, chain)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crowdVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	must(t, json.NewEncoder(in).Encode(c))
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the crowd has not come: %q, %v", line, err)
	}
	return func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the crowd: %v", err)
		}
	}
}

// follow runs in the crowd's process: it reports when all edges have connected, and returns at the end of its input.
func follow(in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var c crowd
	if err := decoder.Decode(&c); err != nil {
		return err
	}
	roots, err := certs.Bundle(c.Roots).Roots()
	if err != nil {
		return err
	}
	group := &errgroup.Group{}
	group.SetLimit(16)
	for i, chain := range c.Chains {
		group.Go(func() error {
			pair, err := tls.X509KeyPair(chain, c.Key)
			if err != nil {
				return err
			}
			source := net.JoinHostPort(fmt.Sprintf("10.1.%d.%d", i>>8, i&255), "1000")
			reach := (&testbed{address: c.Address}).raw
			conn, err := grpc.NewClient(
				"passthrough:///"+c.Address,
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return reach(ctx, source) }),
				grpc.WithTransportCredentials(
					credentials.NewTLS(
						&tls.Config{
							RootCAs:      roots,
							ServerName:   domain.Control(),
							MinVersion:   tls.VersionTLS13,
							Certificates: []tls.Certificate{pair},
						},
					),
				),
			)
			if err != nil {
				return err
			}
			return join(conn, fmt.Sprintf("CN=edge-%d", i))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Fprintln(out, "all are here")
	_, err = io.Copy(io.Discard, in)
	return err
}

// join makes the two calls of an agent.
func join(conn *grpc.ClientConn, node string) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(context.Background())
	if err != nil {
		return err
	}
	for i, typeURL := range []string{resourcev3.ClusterType, resourcev3.ListenerType} {
		request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"}}
		if i == 0 {
			request.Node = &corev3.Node{Id: node}
		}
		if err := stream.Send(request); err != nil {
			return err
		}
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			TypeUrl:       typeURL,
			ResponseNonce: response.GetNonce(),
		}); err != nil {
			return err
		}
	}
	report, err := reportv1.NewReportClient(conn).Edge(context.Background())
	if err != nil {
		return err
	}
	return report.Send(&reportv1.EdgeReport{
		Form: "Process", Version: "v1.0.0", ApiServer: &reportv1.APIServer{
			Address: "127.0.0.1:6443", Healthy: true,
			Version: "v1.34.0",
		},
	})
}

// bare starts a gRPC server that answers the calls of join, and stores nothing.
func bare(b *testing.B, testbed *testbed, options ...grpc.ServerOption) string {
	b.Helper()
	cert := testbed.identity(b, model.ControlSubject(), time.Hour).TLSCertificate()
	roots, err := certs.Bundle(testbed.ca.CertPEM()).Roots()
	must(b, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	server := grpc.NewServer(append(options, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{
			cert,
		}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, MinVersion: tls.VersionTLS13,
	})))...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, bareServer{})
	reportv1.RegisterReportServer(server, bareServer{})
	go func() { _ = server.Serve(unproxied{listener}) }()
	b.Cleanup(server.Stop)
	return listener.Addr().String()
}

type bareServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	reportv1.UnimplementedReportServer
}

// DeltaAggregatedResources implements ADS.
func (bareServer) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.GetResponseNonce() == "" {
			if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: "1"}); err != nil {
				return err
			}
		}
	}
}

// Edge implements the service.
func (bareServer) Edge(stream grpc.BidiStreamingServer[reportv1.EdgeReport, reportv1.EdgeOrders]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// unproxied removes PROXY headers.
type unproxied struct{ net.Listener }

// Accept implements net.Listener.
func (l unproxied) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_, err = io.ReadFull(conn, make([]byte, 28))
	return conn, err
}
