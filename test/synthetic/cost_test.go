package synthetic_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/synthetic"
)

// TestCostOfHandshakes measures what a tunnel, a tunnel with a resumed TLS session, and a rejected tunnel cost the
// gateway. The gateway's default rate is derived from these figures. CPU time, unlike elapsed time, is the same on a
// busy machine.
func TestCostOfHandshakes(t *testing.T) {
	const most = 1_000_000
	edges := number(t, "COST_EDGES", 0)
	if edges == 0 {
		t.Skip("a measurement, by hand: COST_EDGES=50")
	}
	cost := func(rate, rounds int, resume bool) (perDial time.Duration, of synthetic.Stats) {
		w := newWorld(t, edges, func(inst *model.Installation) { inst.Handshakes = rate })
		f := w.fleet(t, func(o *synthetic.Options) { o.Resume = resume })
		for _, wc := range w.clusters {
			w.edge(t, f, wc, nil)
		}
		before, begin := f.Stats(), time.Duration(0)
		for i := range rounds + 1 {
			if i == 1 { // sessions exist now
				before, begin = f.Stats(), w.cpu(t)
			}
			for _, e := range f.Edges() {
				e.Start()
			}
			if rate == most {
				up(t, f, 2*edges)
			} else {
				wait(t, 3*time.Second)
			}
			for _, e := range f.Edges() {
				e.Stop()
			}
		}
		after := f.Stats()
		return (w.cpu(t) - begin) / time.Duration(after.Dials-before.Dials), after
	}
	full, s := cost(most, 4, false)
	t.Logf("a tunnel costs %s, %+v", full, s)
	resumed, s := cost(most, 4, true)
	t.Logf("a tunnel of an edge that would resume its session costs %s, %d were resumed, %+v", resumed, s.Resumed, s)
	refused, s := cost(1, 2, false)
	t.Logf("a tunnel that is refused costs %s, %+v", refused, s)
	if refused > full {
		t.Errorf("to refuse a tunnel costs %s, to open one %s", refused, full)
	}
}

// cpu returns the CPU time that the gateway's Envoy has used so far.
func (w *world) cpu(t *testing.T) time.Duration {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(w.envoy.PID()) + "/schedstat") // only of its main thread
	if err != nil {
		t.Fatal(err)
	}
	sum := nanoseconds(t, data)
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(w.envoy.PID()) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if task.Name() == strconv.Itoa(w.envoy.PID()) {
			continue
		}
		if data, err := os.ReadFile("/proc/" + strconv.Itoa(w.envoy.PID()) + "/task/" + task.Name() +
			"/schedstat"); err == nil {
			sum += nanoseconds(t, data)
		}
	}
	return sum
}

func nanoseconds(t *testing.T, schedstat []byte) time.Duration {
	t.Helper()
	n, err := strconv.ParseInt(strings.Fields(string(schedstat))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}
