package traffic

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// Kind is what has failed.
type Kind string

// The kinds. Each is counted on its own.
const (
	KindRequest    Kind = "request"    // one request on a connection of its own
	KindWatch      Kind = "watch"      // a watch that stays open
	KindConnection Kind = "connection" // a connection with a request every few seconds
)

// maxFailures bounds the list of failures. Later ones are only counted.
const maxFailures = 100

// Failure is one failed request, or a watch or connection that broke.
type Failure struct {
	At    time.Time `json:"at"`
	Kind  Kind      `json:"kind"`
	Error string    `json:"error"`
	// Seconds is how long requests failed, or until a watch or connection was open again. Requests that fail one after
	// the other have one outage, which the first of them states.
	Seconds float64 `json:"seconds,omitempty"`
	// Hop is the hop that check found broken at that time; empty: none was, or there was no check.
	Hop    check.ID `json:"hop,omitempty"`
	Detail string   `json:"detail,omitempty"` // of that hop, or why there is none
	Cause  string   `json:"cause,omitempty"`
	Cure   string   `json:"cure,omitempty"`
}

// Record is what an Observer has found.
type Record struct {
	Requests          int       `json:"requests"`
	FailedRequests    int       `json:"failedRequests"`
	BrokenWatches     int       `json:"brokenWatches"`
	BrokenConnections int       `json:"brokenConnections"`
	OutageSeconds     float64   `json:"longestOutageSeconds"`
	SlowestSeconds    float64   `json:"slowestRequestSeconds"` // of those that succeeded
	Down              bool      `json:"down,omitempty"`        // the last request failed
	Checks            int       `json:"checks"`                // that looked for the broken hop
	Failures          []Failure `json:"failures,omitempty"`    // the first ones
}

// Failed returns the number of failures of all kinds.
func (r *Record) Failed() int { return r.FailedRequests + r.BrokenWatches + r.BrokenConnections }

// recorder collects a Record. It is safe for concurrent use.
type recorder struct {
	mu      sync.Mutex
	record  Record
	open    map[Kind]outage
	pending []int // failures that no check has looked at, as indices of record.Failures
	// broken is the last result of a broken hop, and brokenAt when its check ended.
	broken   *check.Result
	brokenAt time.Time
}

// outage is one that has not ended.
type outage struct {
	since   time.Time
	failure int // index of record.Failures; -1: it is not in the list
}

func newRecorder() *recorder { return &recorder{open: map[Kind]outage{}} }

// succeeded records that a kind works again at a time, or still works. Requests began at since.
func (r *recorder) succeeded(kind Kind, since, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == KindRequest {
		r.record.Requests++
		r.record.SlowestSeconds = max(r.record.SlowestSeconds, at.Sub(since).Seconds())
	}
	r.end(kind, at)
}

// end ends the outage of a kind, if there is one.
func (r *recorder) end(kind Kind, at time.Time) {
	o, ok := r.open[kind]
	if !ok {
		return
	}
	delete(r.open, kind)
	lasted := at.Sub(o.since).Seconds()
	r.record.OutageSeconds = max(r.record.OutageSeconds, lasted)
	if o.failure >= 0 {
		r.record.Failures[o.failure].Seconds = lasted
	}
}

// failed records a failure of something that began to fail at a time.
func (r *recorder) failed(kind Kind, at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch kind {
	case KindRequest:
		r.record.Requests++
		r.record.FailedRequests++
	case KindWatch:
		r.record.BrokenWatches++
	case KindConnection:
		r.record.BrokenConnections++
	}
	index := -1
	if len(r.record.Failures) < maxFailures {
		index = len(r.record.Failures)
		f := Failure{At: at.UTC(), Kind: kind, Error: reason(err)}
		f.Hop, f.Detail = hopOf(err)
		r.record.Failures = append(r.record.Failures, f)
		r.pending = append(r.pending, index)
	}
	if _, ok := r.open[kind]; !ok {
		r.open[kind] = outage{at, index}
	}
}

// hopOf returns the hop that an error itself proves broken; empty: it proves none.
func hopOf(err error) (check.ID, string) {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return check.HopName, "according to the error: a name did not resolve"
	case errors.As(err, &op) && op.Op == "dial":
		return check.HopPort, "according to the error: a connection was not accepted"
	}
	return "", ""
}

// blame makes a hop that was broken the reason.
func (f *Failure) blame(hop *check.Result) {
	f.Hop, f.Detail, f.Cause, f.Cure = hop.ID, hop.Detail, hop.Cause, hop.Cure
}

// checked adds the result of a check to the failures that had none. If the fault was over by then, the hop that a
// check has found shortly before a failure is its reason too: a fault breaks the watch and the connection one after the
// other.
func (r *recorder) checked(report *check.Report, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Checks++
	found := report.Deciding()
	isBroken := found != nil && found.Status == check.Broken
	for _, i := range r.pending {
		f := &r.record.Failures[i]
		switch {
		case isBroken:
			f.blame(found)
		case r.broken != nil && f.At.Sub(r.brokenAt) < pauseTime:
			f.blame(r.broken)
		case f.Hop == "":
			f.Detail = "no hop was broken " + short(now.Sub(f.At)).String() + " later: the fault was over by then"
			if found != nil { // it may have been there before, such as a certificate that expires soon
				f.Detail += "; the hop " + string(found.ID) + " has a warning: " + found.Detail
			}
		}
	}
	r.pending = nil
	if isBroken {
		r.broken, r.brokenAt = found, now
	}
}

// unexplained reports whether there are failures that no check has looked at.
func (r *recorder) unexplained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending) > 0
}

// finish ends all outages, and returns the record.
func (r *recorder) finish(at time.Time) Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, r.record.Down = r.open[KindRequest]
	for kind := range r.open {
		r.end(kind, at)
	}
	return r.record
}
