package xdsproxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
)

const (
	// trialsFile is not the name of a generation, whatever the name of an upstream is.
	trialsFile = "trials"
	// trialsMagic begins the file. Its number is the version of the format.
	trialsMagic = "fairlead trials 1\n"
)

// trials counts the consecutive runs of Envoy that began with unproven resources and did not prove them. The count is
// on disk before Envoy gets such resources, so that it outlives an agent that ends together with its Envoy. The
// proxy's lock guards it.
type trials struct {
	count int       // at most crashLimit
	open  bool      // the running Envoy is in the last of them
	began time.Time // start of that run, as known to this agent
}

func (t *trials) begin() { t.count, t.open, t.began = min(t.count+1, crashLimit), true, time.Now() }

// over resets the trials: the resources were proven, or are not at fault.
func (t *trials) over() { *t = trials{} }

// suspects returns the contributions that Envoy may not be able to run with, and what each can be rolled back to.
func (r *Proxy) suspects() map[*contribution][kinds]set {
	suspects := map[*contribution][kinds]set{}
	for _, c := range r.contributions {
		if to, ok := c.fallback(); ok {
			suspects[c] = to
		}
	}
	return suspects
}

func (r *Proxy) takeBack(suspects map[*contribution][kinds]set) {
	for c, to := range suspects {
		c.rollBack(to)
	}
	r.notifySession()
	r.notifyChanged()
}

// canSend reports whether Envoy may get a batch. It begins a trial if the batch has something that may be at fault.
// After too many trials, the proxy rolls back to the good resources and canSend returns false: the batch must be
// chosen again.
func (s *session) canSend(k kind, b *batch) bool {
	r := s.proxy
	if r.trials.open || !b.doubtful(k) {
		return true
	}
	if r.trials.count < crashLimit {
		r.trials.begin()
		return true
	}
	for _, name := range b.names {
		s.tables[k].todo[name] = true // it may be a part of a rejected batch
	}
	// Resources that the xds-server has not sent yet may be at fault instead. They get one trial, not the full number.
	r.trials.count = crashLimit - 1
	r.takeBack(r.suspects())
	return false
}

// doubtful reports whether Envoy may not be able to run with a batch, although there are resources that it ran with:
// see fallback.
func (b *batch) doubtful(k kind) bool {
	if b.share == nil {
		return false
	}
	c := b.share.of
	if !c.proven() {
		return c.othersProven()
	}
	good := c.good[k]
	if good == nil {
		good = b.share.accepted
	}
	return slices.ContainsFunc(
		b.names, func(name string) bool { return good[name].version() != b.changes[name].version() },
	)
}

// Ended is called by the supervisor when Envoy ran until it was stopped in order: nothing is at fault. An agent that
// leaves Envoy to the next agent does not call it.
func (r *Proxy) Ended() {
	r.mu.Lock()
	r.cut()
	r.served = false
	r.trials.over()
	r.mu.Unlock()
	r.record()
}

// encodeTrials returns the content of the file.
func encodeTrials(count int) []byte {
	text := fmt.Appendf(nil, "%s%d", trialsMagic, count)
	return fmt.Appendf(nil, "%s %x\n", text, sha256.Sum256(text))
}

// loadTrials reads the number of trials that earlier agents began. An unusable file counts as none, because a rollback
// without a reason is worse than another crash.
func (r *Proxy) loadTrials() {
	path := filepath.Join(r.dir, trialsFile)
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	r.recorded = unrecorded
	for count := 1; err == nil && count <= crashLimit; count++ {
		if bytes.Equal(data, encodeTrials(count)) {
			r.trials.count, r.recorded = count, count
			r.log.Info("Envoy ended early with its newest resources", "times", count)
			return
		}
	}
	if err == nil {
		err = errDamaged
	}
	r.log.Error("record of crashes is not usable, starting a new one", "path", path, "error", err)
}

// unrecorded is the count of an unreadable file.
const unrecorded = -1

// record writes the count of trials if it differs from the file. It logs the first of several consecutive errors;
// Envoy gets its resources regardless.
func (r *Proxy) record() {
	r.recording.Lock()
	defer r.recording.Unlock()
	r.mu.Lock()
	count := r.trials.count
	r.mu.Unlock()
	if count == r.recorded {
		return
	}
	path := filepath.Join(r.dir, trialsFile)
	var err error
	if count > 0 {
		err = disk.ReplaceBy(path+temporaryEnding, path, encodeTrials(count))
	} else if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		r.recorded = count
	} else if !r.recordFails {
		r.log.Error("cannot write record of crashes: crashes that also end this agent may not be counted", "error", err)
	}
	r.recordFails = err != nil
}
