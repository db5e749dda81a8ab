package agent

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/report"
)

func TestFullness(t *testing.T) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(`
# TYPE envoy_overload_envoy_resource_monitors_fixed_heap_pressure gauge
envoy_overload_envoy_resource_monitors_fixed_heap_pressure{} 38
# TYPE envoy_listener_downstream_cx_active gauge
envoy_listener_downstream_cx_active{envoy_listener_address="public"} 5000
envoy_listener_downstream_cx_active{envoy_listener_address="apiserver"} 20000
envoy_listener_downstream_cx_active{envoy_listener_address="connect"} 5000
`))
	if err != nil {
		t.Fatal(err)
	}
	got := fullness(families)
	for limit, want := range map[string]float64{"memory": 0.4, "connections": 0.6, "public_connections": 0.2} {
		if math.Abs(got[limit]-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", limit, got[limit], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("got %v", got)
	}
	if got := fullness(nil); len(got) != 0 {
		t.Errorf("without Envoy: %v", got)
	}
}

// TestWorkerTimes starts a shell as a thread with the name of a worker, which is busy. Its other thread is not counted.
func TestWorkerTimes(t *testing.T) {
	busy := exec.CommandContext(t.Context(), "sh", "-c", "printf wrk:worker_7 > /proc/$$/comm; while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	eventually.True(t, time.Minute, "the worker has used CPU time", func() error {
		times, err := workerTimes(busy.Process.Pid)
		if err != nil {
			return err
		}
		if len(times) != 1 || times["7"] < 0.05 {
			return fmt.Errorf("got %v", times)
		}
		return nil
	})
	if times, err := workerTimes(os.Getpid()); err != nil || len(times) != 0 {
		t.Errorf("this process: %v, %v", times, err)
	}
}

// TestTheLimitOfTunnelsFollowsHeapAndFiles, which reverse tunnels use up, and not the workers. Three edges of each of
// 10,000 workload clusters keep 60,000 to a gateway. All that are admitted fit in a report, with some that Envoy has
// admitted while it could not query the agent.
func TestTheLimitOfTunnelsFollowsHeapAndFiles(t *testing.T) {
	for _, test := range []struct {
		memory, files uint64
		want          int
	}{
		{0, 1 << 20, 87_381},
		{1536 << 20, 1 << 20, 65_536},
		{64 << 30, math.MaxUint64, 100_000},
		{144 << 20, 1 << 20, 6144},
		{0, 65_536, 49_152},
		{0, 20_000, 15_000},
		{1, 4, 1},
	} {
		for _, workers := range []int{0, 1, 16} {
			got := Config{Memory: test.memory, Concurrency: workers}.maxTunnels(test.files)
			if got != test.want || got > report.MaxTunnels/5*4 {
				t.Errorf("%+v with %d workers: %d reverse tunnels", test, workers, got)
			}
		}
	}
	if n := openFiles(); n == 0 {
		t.Error("no file may be opened")
	}
}

func TestTheHeapFollowsTheLimitOfTheControlGroup(t *testing.T) {
	for _, test := range []struct {
		gateway bool
		limit   uint64
		limited bool
		want    uint64
	}{
		{true, 0, false, 2 << 30},
		{true, 1 << 30, true, 768 << 20},
		{true, 8 << 30, true, 2 << 30},
		{false, 0, false, 512 << 20},
		{false, 256 << 20, true, 192 << 20},
		{false, 1 << 30, true, 512 << 20},
	} {
		c := Config{}
		if test.gateway {
			c.Gateway = &gateway.Config{}
		}
		if got := c.heap(test.limit, test.limited); got != test.want {
			t.Errorf("%+v: got %d", test, got)
		}
	}
}
