package trips

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestClasses(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		trip time.Duration
		was  int
		want int
	}{
		{100 * time.Microsecond, Unknown, 0},
		{2 * ms, Unknown, 1},
		{30 * ms, Unknown, 2},
		{100 * ms, Unknown, 3},
		{time.Second, Unknown, 4},
		{2200 * time.Microsecond, 0, 0}, // within the margin
		{2600 * time.Microsecond, 0, 1},
		{1800 * time.Microsecond, 1, 1}, // within the margin
		{1400 * time.Microsecond, 1, 0},
		{time.Second, 0, 4},
		{100 * time.Microsecond, 4, 0},
		{150 * ms, 4, 4}, // within the margin
		{110 * ms, 4, 3},
	} {
		if got := classOf(c.trip, c.was); got != c.want {
			t.Errorf("%s in class %d: got class %d, want %d", c.trip, c.was, got, c.want)
		}
	}
}

// listen accepts connections.
func listen(t *testing.T) model.Endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	at, err := model.ParseEndpoint(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestAMeterMeasuresAndRemembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trips")
	log := slog.New(slog.DiscardHandler)
	hosts := map[string]model.Endpoint{"a": listen(t), "b": listen(t), "dead": {Host: "127.0.0.1", Port: 1}}
	m := New(path, log)
	if m.Class("a") != Unknown || m.Of("a") != 0 {
		t.Error("a host that was not measured has a class")
	}
	m.Measure(t.Context(), hosts)
	for _, host := range []string{"a", "b"} {
		if m.Class(host) != 0 || m.Of(host) <= 0 || m.Of(host) > time.Second {
			t.Errorf("%s: class %d, %s", host, m.Class(host), m.Of(host))
		}
	}
	if m.Class("dead") != Unknown {
		t.Errorf("a host that does not answer has the class %d", m.Class("dead"))
	}
	if again := New(path, log); again.Class("a") != 0 || again.Class("dead") != Unknown {
		t.Error("the next meter does not know the classes")
	}
	t.Run("a host that falls silent keeps its class, one that is gone loses it", func(t *testing.T) {
		delete(hosts, "b")
		if m.record(hosts, nil); m.Class("a") != 0 || m.Class("b") != Unknown {
			t.Errorf("classes %d and %d", m.Class("a"), m.Class("b"))
		}
	})
}

// TestTheShortestOfTheLatestCounts: a slow answer of a busy machine moves no host into another class.
func TestTheShortestOfTheLatestCounts(t *testing.T) {
	m := New("", slog.New(slog.DiscardHandler))
	hosts := map[string]model.Endpoint{"a": {}}
	note := func(trip time.Duration) (changed bool) {
		return m.record(hosts, map[string]time.Duration{"a": trip}) != nil
	}
	note(time.Millisecond)
	for range kept - 1 {
		if note(time.Second); m.Class("a") != 0 {
			t.Fatalf("the class is %d after slow answers", m.Class("a"))
		}
	}
	if !note(time.Second) || m.Class("a") != 4 {
		t.Errorf("the class is %d when all latest answers are slow", m.Class("a"))
	}
}
