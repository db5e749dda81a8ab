package agent

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/overload"
	"github.com/fairlead/fairlead/pkg/report"
)

// clockTick is the unit of CPU times in /proc, in seconds: proc(5). It is the same on all machines that Go supports.
const clockTick = 0.01

// tunnelHeap is how much of Envoy's heap an idle reverse tunnel uses at most, in bytes: docs/benchmarks/scale.md.
const tunnelHeap = 8 << 10

// fullness returns which part a gateway uses of each limit at which it rejects what is new, from Envoy's statistics. A
// limit is missing if Envoy has no statistic for it.
func fullness(families map[string]*dto.MetricFamily) map[string]float64 {
	parts := map[string]float64{}
	for _, m := range families["envoy_overload_envoy_resource_monitors_fixed_heap_pressure"].GetMetric() {
		parts["memory"] = m.GetGauge().GetValue() / 100 / overload.RejectAt // in percent of the heap
	}
	// Envoy has a statistic for the pressure of connections, but does not set it.
	for _, m := range families["envoy_listener_downstream_cx_active"].GetMetric() {
		parts["connections"] += m.GetGauge().GetValue() / float64(overload.Connections(0))
		for _, l := range m.GetLabel() {
			if l.GetValue() == envoy.PublicListener {
				parts["public_connections"] = m.GetGauge().GetValue() / float64(overload.PublicConnections(0))
			}
		}
	}
	return parts
}

// workerTimes returns the CPU time of each worker of an Envoy in seconds, by its number. Envoy names their threads.
func workerTimes(pid int) (map[string]float64, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return nil, err
	}
	times := map[string]float64{}
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		// "12 (wrk:worker_0) S …": of the fields after the name, the 12th and the 13th are the times in the process and
		// in the kernel.
		name, rest, found := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		_, worker, isWorker := strings.Cut(name, "(wrk:worker_")
		if !found || !isWorker || len(fields) < 13 {
			continue
		}
		own, err1 := strconv.ParseFloat(fields[11], 64)
		kernel, err2 := strconv.ParseFloat(fields[12], 64)
		if err1 == nil && err2 == nil {
			times[worker] = (own + kernel) * clockTick
		}
	}
	return times, nil
}

// maxTunnels returns how many reverse tunnels all edges may have to a gateway whose Envoy may open this many files.
// Envoy does not count them as connections, so they get a third of its heap and three quarters of its files, however
// many workers it has. A report has room for a quarter more: Envoy admits some while it cannot query the agent.
func (c Config) maxTunnels(files uint64) int {
	heap := cmp.Or(c.Memory, overload.GatewayHeap)
	return int(max(1, min(heap/3/tunnelHeap, files/4*3, report.MaxTunnels/5*4)))
}

// openFiles returns how many files Envoy may open: its limit is that of this process, and it raises the soft one to the
// hard one when it starts.
func openFiles() uint64 {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return math.MaxUint64
	}
	return l.Max
}

// emitFull emits how full a gateway is.
func (a *Agent) emitFull(emit metrics.Emit, families map[string]*dto.MetricFamily) {
	most := a.config.maxTunnels(openFiles())
	emit("fairlead_gateway_full_ratio", float64(a.gateway.Table.Stats().Tunnels)/float64(most), "tunnels")
	for limit, part := range fullness(families) {
		emit("fairlead_gateway_full_ratio", part, limit)
	}
	pid, err := a.config.admin().PID()
	if err != nil {
		return // no Envoy runs, as another metric says
	}
	if times, err := workerTimes(pid); err == nil {
		for worker, seconds := range times {
			emit("fairlead_gateway_worker_cpu_seconds_total", seconds, worker)
		}
	}
}
