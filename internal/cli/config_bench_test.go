package cli

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pkg/inspect"
	"github.com/fairlead/fairlead/pkg/model"
)

// BenchmarkConfigDump is `fairlead config dump` of a gateway with 10,000 workload clusters, whole and of one by name, with the xds-server in
// the same process.
func BenchmarkConfigDump(b *testing.B) {
	var clusters []model.WorkloadCluster
	for i := range 10_000 {
		name := fmt.Sprintf("c%d", i)
		clusters = append(clusters, model.WorkloadCluster{
			Key: model.Key{Namespace: "prod", Name: name}, ID: name + strings.Repeat("0", 20-len(name)), Hostname: name + ".prod.tunnels.example.com",
			APIServer: model.Endpoint{Host: "10.1.0.1", Port: 6443},
		})
	}
	s := newXDSServer(b, clusters...)
	s.gateway(b, "gateway-0", "")
	servers, err := inspect.Connect(b.Context(), inspect.Options{Addresses: []string{s.inspection.String()}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = servers.Close() })
	for name, wanted := range map[string]string{"whole": "", "name": clusters[7].Hostname} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var out counter
			cmd, before := &cobra.Command{}, used(b)
			cmd.SetOut(&out)
			for b.Loop() {
				out = 0
				f := dumpFlags{name: wanted}
				f.form = "table"
				all, err := f.look(b.Context(), servers, "gateway-0")
				if err == nil {
					err = f.print(cmd, dumpView("gateway-0", all, false))
				}
				if err != nil || out == 0 {
					b.Fatalf("%d bytes, %v", out, err)
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

// used is the CPU time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
