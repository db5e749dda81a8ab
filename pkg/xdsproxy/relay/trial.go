package relay

import (
	"slices"
	"time"
)

// crashLimit is the number of consecutive unexpected ends of Envoy after which its newest resources are taken as the
// cause. A single end may be chance, and each further one costs the tunnels.
const crashLimit = 3

// MaxTrials is the largest count in a record of trials.
const MaxTrials = crashLimit

// unrecorded is the count of a record that cannot be read.
const unrecorded = -1

// trials counts the consecutive runs of Envoy that began with unproven resources and did not prove them. The count is
// on disk before Envoy gets such resources, so that it outlives an agent that ends together with its Envoy.
type trials struct {
	count int       // at most crashLimit
	open  bool      // the running Envoy is in the last of them
	began time.Time // start of that run, as known to this agent

	recorded  int       // the count on disk
	attempted int       // the last count that the caller has tried to record
	recording bool      // a Record has no result yet
	retry     time.Time // of a Record that failed
	failing   bool
}

func (t *trials) begin(now time.Time) {
	t.count, t.open, t.began = min(t.count+1, crashLimit), true, now
}

// resume continues the last trial with an Envoy that outlived its agent.
func (t *trials) resume(now time.Time) {
	if t.count > 0 && !t.open {
		t.open, t.began = true, now
	}
}

// over resets the trials: the resources were proven, or are not at fault.
func (t *trials) over() { t.count, t.open, t.began = 0, false, time.Time{} }

// record emits Record if the count differs from the disk.
func (t *trials) record(r *Relay) {
	if t.recording || t.count == t.recorded || t.count == t.attempted && r.now.Before(t.retry) {
		return
	}
	t.recording = true
	r.emit(Record{t.count})
}

// apply takes the result of a Record. Envoy gets its resources regardless.
func (e Recorded) apply(r *Relay) {
	t := &r.trials
	t.recording, t.attempted, t.recorded = false, e.Count, e.Count
	if e.Err == "" {
		t.failing = false
		return
	}
	t.recorded, t.retry = unrecorded, r.now.Add(r.Times.Retry)
	if !t.failing {
		r.log.Error(
			"cannot write record of crashes: crashes that also end this agent may not be counted", "error", e.Err,
		)
	}
	t.failing = true
}

// judgement is what has to happen before a batch is sent.
type judgement int

const (
	sendNow       judgement = iota
	recordFirst             // the trial that it begins must be on disk
	rollBackFirst           // there were too many trials: the batch must be chosen again
)

// judge judges a batch. It begins a trial if the batch has something that may be at fault.
func (t *trials) judge(r *Relay, b *batch) judgement {
	recorded := t.attempted == t.count && !t.recording
	switch {
	case t.open && recorded, !b.doubtful():
		return sendNow
	case t.open:
		return recordFirst
	case t.count >= crashLimit:
		return rollBackFirst
	}
	t.begin(r.now)
	return recordFirst
}

// doubtful reports whether Envoy may not be able to run with a batch, although there are resources that it ran with:
// see fallback.
func (b *batch) doubtful() bool {
	if b.share == nil {
		return false
	}
	c := b.share.of
	if !c.proven() {
		return c.othersProven()
	}
	good := b.share.good
	if good == nil {
		good = b.share.accepted
	}
	return slices.ContainsFunc(
		b.names, func(name string) bool { return good[name].version() != b.changes[name].version() },
	)
}
