// Package trips measures the round trips to hosts again and again, and puts hosts into classes by them. In go names and
// addresses, out come classes, which change rarely. It does not know what the hosts are used for.
package trips

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// kept is how many of the latest measurements of a host count: the shortest of them is its round trip, as a longer one
	// says more about load than about distance.
	kept = 6
	// dialTime bounds one measurement, and atOnce how many run at the same time.
	dialTime, atOnce = time.Second, 8
	// margin is by how much a round trip must be beyond the bound of its class before the class changes: each change costs
	// Envoy an update of every Envoy cluster that prefers near hosts.
	margin = 4
	// maxFile exceeds the size of the file.
	maxFile = 64 << 10
)

// bounds are the upper bounds of the classes. Zones of one region are below the first, and neighbouring regions below
// the second.
var bounds = []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 160 * time.Millisecond}

// Unknown is the class of a host that has never answered. It is after all others.
var Unknown = len(bounds) + 1

// Meter has the round trips to some hosts. It is safe for concurrent use.
type Meter struct {
	path string // persists the classes, so that a restart changes none; empty: nothing does
	log  *slog.Logger

	mu      sync.Mutex
	latest  map[string][]time.Duration
	classes map[string]int
}

// New returns a Meter with the classes that an earlier one has stored in a file.
func New(path string, log *slog.Logger) *Meter {
	m := &Meter{path: path, log: log, latest: map[string][]time.Duration{}, classes: map[string]int{}}
	if data, err := os.ReadFile(path); err == nil && len(data) <= maxFile {
		if json.Unmarshal(data, &m.classes) != nil || m.classes == nil {
			m.classes = map[string]int{}
		}
	}
	maps.DeleteFunc(m.classes, func(_ string, class int) bool { return class < 0 || class >= Unknown })
	return m
}

// Measure measures the hosts, whose addresses it gets by their names, once.
func (m *Meter) Measure(ctx context.Context, hosts map[string]model.Endpoint) {
	measured := measure(ctx, hosts)
	if ctx.Err() != nil {
		return
	}
	if changed := m.record(hosts, measured); changed != nil {
		m.save(changed)
	}
}

// Class returns the class of a host: 0 for the nearest ones, up to Unknown.
func (m *Meter) Class(host string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if class, ok := m.classes[host]; ok {
		return class
	}
	return Unknown
}

// Of returns the round trip to a host; 0: it is not known.
func (m *Meter) Of(host string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if latest := m.latest[host]; len(latest) > 0 {
		return slices.Min(latest)
	}
	return 0
}

// measure opens a TCP connection to each host. The result has those that answered.
func measure(ctx context.Context, hosts map[string]model.Endpoint) map[string]time.Duration {
	measured := map[string]time.Duration{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(atOnce)
	for name, at := range hosts {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
			if err != nil {
				return nil //nolint:nilerr // a host that does not answer has no measurement
			}
			defer conn.Close()
			if trip := dial.RoundTrip(conn); trip > 0 {
				mu.Lock()
				defer mu.Unlock()
				measured[name] = trip
			}
			return nil
		})
	}
	_ = group.Wait()
	return measured
}

// record adds measurements, and discards hosts that no longer exist. A host that did not answer keeps its class. It
// returns the classes if one has changed, otherwise nil.
func (m *Meter) record(hosts map[string]model.Endpoint, measured map[string]time.Duration) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := maps.Clone(m.classes)
	gone := func(name string) bool { _, ok := hosts[name]; return !ok }
	maps.DeleteFunc(m.latest, func(name string, _ []time.Duration) bool { return gone(name) })
	maps.DeleteFunc(m.classes, func(name string, _ int) bool { return gone(name) })
	for name, trip := range measured {
		latest := append(m.latest[name], trip)
		m.latest[name] = latest[max(0, len(latest)-kept):]
		is, ok := m.classes[name]
		if !ok {
			is = Unknown
		}
		m.classes[name] = classOf(slices.Min(m.latest[name]), is)
	}
	if maps.Equal(before, m.classes) {
		return nil
	}
	return maps.Clone(m.classes)
}

// classOf returns the class of a round trip for a host that has been in a class. It keeps this class within a margin.
func classOf(trip time.Duration, was int) int {
	class := 0
	for class < len(bounds) && trip >= bounds[class] {
		class++
	}
	longer := class == was+1 && trip < bounds[was]+bounds[was]/margin
	shorter := class == was-1 && was < Unknown && trip > bounds[class]-bounds[class]/margin
	if longer || shorter {
		return was
	}
	return class
}

// save writes to the disk, so no lock may be held.
func (m *Meter) save(classes map[string]int) {
	if m.path == "" {
		return
	}
	data, err := json.Marshal(classes)
	if err == nil {
		err = disk.Replace(m.path, data)
	}
	if err != nil {
		m.log.Warn("cannot persist round-trip times: the next start measures them again", "error", err)
	}
}
