package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/pkg/model"
)

// BenchmarkConfigDump measures `fairlead config dump` of a gateway with 10,000 workload clusters: the whole dump, and
// one workload cluster by name. The xds-server runs in the same process.
func BenchmarkConfigDump(b *testing.B) {
	var clusters []model.WorkloadCluster
	for i := range 10_000 {
		name := fmt.Sprintf("c%d", i)
		clusters = append(clusters, model.WorkloadCluster{
			Key: model.Key{
				Namespace: "prod",
				Name:      name,
			}, ID: name + strings.Repeat("0", 20-len(name)), Hostname: name + ".prod.tunnels.example.com",
			APIServer: model.Endpoint{Host: "10.1.0.1", Port: 6443},
		})
	}
	s := newXDSServer(b, clusters...)
	s.gateway(b, "gateway-0", "")
	nowhere := filepath.Join(b.TempDir(), "kubeconfig") // of a management cluster that the command does not query
	config := clientcmdapi.NewConfig()
	config.Clusters["none"], config.Contexts["none"] = &clientcmdapi.Cluster{
		Server: "https://127.0.0.1:1",
	}, &clientcmdapi.Context{
		Cluster: "none",
	}
	config.CurrentContext = "none"
	if err := clientcmd.WriteToFile(*config, nowhere); err != nil {
		b.Fatal(err)
	}
	for name, wanted := range map[string]string{"whole": "", "name": clusters[7].Hostname} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var out counter
			var errs strings.Builder
			args := []string{"config", "dump", "gateway-0", "--kubeconfig=" + nowhere, "--xds-server=" + s.inspection.String()}
			if wanted != "" {
				args = append(args, "--name="+wanted)
			}
			before := used(b)
			for b.Loop() {
				out = 0
				if code := run(b.Context(), args, &out, &errs); code != 0 || out == 0 {
					b.Fatalf("exit code %d, %d bytes, %s", code, out, errs.String())
				}
			}
			b.ReportMetric(float64(out), "bytes")
			b.ReportMetric(float64((used(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// counter counts what is written.
type counter int

var _ io.Writer = (*counter)(nil)

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// used returns the CPU time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
