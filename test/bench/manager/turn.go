package manager

import (
	"fmt"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/test/bench/record"
)

// turn holds the figures of one run of a manager.
type turn struct {
	allConnected time.Duration // from the start of the program
	connects     []time.Duration
	probes       []time.Duration // that began after all Clusters were connected
	failures     int             // of connecting and of probes
	memory       uint64          // in bytes
	cpu          time.Duration   // during the probes
	connections  int
}

// take adds the figures of a log, and of the probes since a time.
func (t *turn) take(f *follower, since time.Time, memory uint64, cpu time.Duration) {
	for _, d := range f.connected {
		t.connects = append(t.connects, d)
	}
	for _, p := range f.probes {
		if !p.began.Before(since) {
			t.probes = append(t.probes, p.took)
		}
	}
	t.failures, t.memory, t.cpu = f.failed, memory, cpu
}

// String implements fmt.Stringer.
func (t turn) String() string {
	connects, probes := milliseconds(t.connects), milliseconds(t.probes)
	return fmt.Sprintf(
		"all connected after %s, connecting %.1f ms (p99 %.1f), %d probes %.2f ms (p99 %.2f), %d failures, %.0f MB, %s of "+
			"CPU in %s",
		t.allConnected.Round(time.Millisecond),
		record.Median(connects),
		record.Quantile(connects, .99),
		len(probes),
		record.Median(probes),
		record.Quantile(probes, .99),
		t.failures,
		float64(t.memory)/1e6,
		t.cpu,
		probing,
	)
}

// turns holds the figures of one subject over all rounds, one sample for each round.
type turns struct {
	all, connect50, connect99, probe50, probe99, failures, memory, cpu []float64
}

func (t *turns) add(one turn) {
	connects, probes := milliseconds(one.connects), milliseconds(one.probes)
	t.all = append(t.all, one.allConnected.Seconds())
	t.connect50, t.connect99 = append(t.connect50, record.Median(connects)), append(
		t.connect99, record.Quantile(connects, .99),
	)
	t.probe50, t.probe99 = append(t.probe50, record.Median(probes)), append(t.probe99, record.Quantile(probes, .99))
	t.failures = append(t.failures, float64(one.failures))
	t.memory = append(t.memory, float64(one.memory)/1e6)
	t.cpu = append(t.cpu, float64(one.cpu)/float64(time.Millisecond)/probing.Seconds())
}

func (t *turns) record(log *record.Log, subject string, size int) {
	for _, r := range []struct {
		name, unit string
		samples    []float64
	}{
		{"all connected after", "s", t.all},
		{"connect p50", "ms", t.connect50},
		{"connect p99", "ms", t.connect99},
		{"probe p50", "ms", t.probe50},
		{"probe p99", "ms", t.probe99},
		{"failures", "", t.failures},
		{"memory", "MB", t.memory},
		{"CPU", "ms/s", t.cpu},
	} {
		log.Add(
			record.Result{
				Name:    r.name,
				Subject: subject,
				Unit:    r.unit,
				Samples: r.samples,
				Params:  map[string]string{"clusters": strconv.Itoa(size)},
			},
		)
	}
}

func milliseconds(all []time.Duration) []float64 {
	var out []float64
	for _, d := range all {
		out = append(out, float64(d)/float64(time.Millisecond))
	}
	return out
}
