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
	// trialsFile is no name of a generation, whatever an upstream is called.
	trialsFile = "trials"
	// trialsMagic begins it. Its number is that of the format.
	trialsMagic = "fairlead trials 1\n"
)

// trials are the runs of Envoy in a row that began with resources which are not known to be good, and did not show that they
// are. It is on disk before Envoy gets such resources, so that it outlives an agent that ends together with its Envoy. The
// proxy's lock guards it.
type trials struct {
	count int       // at most crashLimit
	open  bool      // the Envoy that runs is in the last of them
	began time.Time // when that began, as far as this agent knows
}

func (t *trials) begin() { t.count, t.open, t.began = min(t.count+1, crashLimit), true, time.Now() }

// over forgets them: what was tried has been shown to be good, or not to be at fault.
func (t *trials) over() { *t = trials{} }

// suspects are those that Envoy may not be able to run with, and what they can go back to.
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
	r.wake()
	r.signal()
}

// dares says whether Envoy may get a batch. It begins a trial if there is something in it that may be at fault. When there
// were too many, the proxy goes back to what is good, and the batch is to be chosen anew.
func (s *session) dares(k kind, b *batch) bool {
	r := s.proxy
	if r.trials.open || !b.doubtful(k) {
		return true
	}
	if r.trials.count < crashLimit {
		r.trials.begin()
		return true
	}
	for _, name := range b.names {
		s.tables[k].todo[name] = true // it may have come from a part
	}
	// What the xds-server has not sent yet may be at fault instead. It has one trial, not all of them again.
	r.trials.count = crashLimit - 1
	r.takeBack(r.suspects())
	return false
}

// doubtful says whether Envoy may not be able to run with a batch, although there is something that it ran with: see fallback.
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
	return slices.ContainsFunc(b.names, func(name string) bool { return good[name].version() != b.changes[name].version() })
}

// Ended is told by who supervises Envoy that it ran until it was ended in order: nothing is at fault. An agent that leaves
// Envoy to the next one doesn't say so.
func (r *Proxy) Ended() {
	r.mu.Lock()
	r.cut()
	r.served = false
	r.trials.over()
	r.mu.Unlock()
	r.record()
}

// encodeTrials returns the bytes of the file.
func encodeTrials(count int) []byte {
	text := fmt.Appendf(nil, "%s%d", trialsMagic, count)
	return fmt.Appendf(nil, "%s %x\n", text, sha256.Sum256(text))
}

// loadTrials reads how many trials earlier agents began. A file that can't be used counts as none: to go back without a reason
// is worse than to crash more often.
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

// unrecorded is the count of a file in which none can be read.
const unrecorded = -1

// record writes the count of trials if it differs from what is on disk. An error is logged once, until it works again: Envoy
// gets its resources all the same.
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
