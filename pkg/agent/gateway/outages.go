package gateway

import (
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/metrics"
)

// maxOutage is how long a workload cluster that has lost its last tunnel counts. After that it is down for a reason of
// its own, such as machines that were switched off, and figures about the tunnels of others must not hide behind it.
const maxOutage = time.Hour

// OutageFigures are the names of the metrics of outages that have no buckets.
var OutageFigures = []string{
	"fairlead_gateway_expected_tunnel_seconds_total", "fairlead_gateway_missing_tunnel_seconds_total",
	"fairlead_gateway_rejected_clients_total",
}

// outages measures the time in which workload clusters had no tunnel here although they should have one: each that had
// one since the agent began, and that the gateway still serves. It is safe for concurrent use.
type outages struct {
	mu       sync.Mutex
	last     time.Time            // of the last update
	had      map[string]bool      // ids that have had a tunnel
	since    map[string]time.Time // begin of each present outage, by id
	expected float64              // seconds, the sum over all ids of had
	missing  float64              // seconds, the sum over all outages, each for maxOutage at most
	// rejected counts clients of unreachable workload clusters: during an outage, and otherwise.
	rejected struct{ outage, other uint64 }
	ended    func(time.Duration) // called with the length of each outage that has ended within maxOutage; nil: not called
}

func newOutages() *outages {
	return &outages{had: map[string]bool{}, since: map[string]time.Time{}}
}

// update records which of the served ids have a tunnel now. If sure is false, there may be tunnels that are not
// recorded, and no outage begins.
func (o *outages) update(now time.Time, served map[string]bool, sure bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.elapse(now)
	for id := range o.had {
		if _, still := served[id]; !still {
			delete(o.had, id)
			delete(o.since, id)
		}
	}
	for id, has := range served {
		began, out := o.since[id]
		switch {
		case has:
			o.had[id] = true
			if !out {
				continue
			}
			delete(o.since, id)
			if lasted := now.Sub(began); o.ended != nil && lasted <= maxOutage {
				o.ended(lasted)
			}
		case !out && sure && o.had[id]:
			o.since[id] = now
		}
	}
}

// elapse adds the time since the last update. The caller holds the lock.
func (o *outages) elapse(now time.Time) {
	if !o.last.IsZero() && now.After(o.last) {
		o.expected += now.Sub(o.last).Seconds() * float64(len(o.had))
		for _, began := range o.since {
			if end := began.Add(maxOutage); end.After(o.last) {
				o.missing += minTime(now, end).Sub(o.last).Seconds()
			}
		}
	}
	o.last = now
}

// reject counts a rejected client of an id.
func (o *outages) reject(id string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if began, out := o.since[id]; out && now.Sub(began) <= maxOutage {
		o.rejected.outage++
	} else {
		o.rejected.other++
	}
}

// emit emits the metrics of OutageFigures.
func (o *outages) emit(emit metrics.Emit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	emit("fairlead_gateway_expected_tunnel_seconds_total", o.expected)
	emit("fairlead_gateway_missing_tunnel_seconds_total", o.missing)
	emit("fairlead_gateway_rejected_clients_total", float64(o.rejected.outage), "outage")
	emit("fairlead_gateway_rejected_clients_total", float64(o.rejected.other), "other")
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
