package tunnels

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// Fresh forgets all tunnels and the files: no Envoy runs, and one is about to be started. Until it is called, what is in
// the files is the running Envoy's. After an error it must be called again.
func (t *Table) Fresh() error {
	t.files.Lock()
	defer t.files.Unlock()
	t.log.close()
	if err := t.removeFiles(); err != nil {
		return err
	}
	t.mu.Lock()
	t.ledger.reset()
	empty := stateFile{Unrecorded: t.unrecorded} // the next Envoy gets the same configuration
	t.mu.Unlock()
	// From here on a state that is missing is a gap in the record.
	if err := t.writeState(empty); err != nil {
		return err
	}
	t.gapUnsaved.Store(false)
	t.log.loaded, t.log.unsaved, t.log.goneAt = true, false, time.Time{}
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]string, 0, len(t.live))
	for key := range t.live {
		keys = append(keys, key)
	}
	for _, key := range keys {
		t.drop(key, time.Now())
	}
	clear(t.repairs.turns)
	t.history.add(keys)
	return nil
}

// follow reads the files until ctx ends.
func (t *Table) follow(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		t.poll(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// poll reads what has come since the last call, and brings the files in order.
func (t *Table) poll(now time.Time) {
	t.files.Lock()
	defer t.files.Unlock()
	changes := newBatch(t.repairs.workers)
	if !t.log.loaded {
		t.load(&changes)
	}
	left, gone, err := t.log.read(func(line []byte) { t.line(line, &changes) })
	if err != nil {
		t.say(slog.LevelError, "cannot read log of tunnels, retrying", err)
		if !t.log.loaded {
			t.log.close() // from the beginning, then
			return
		}
	}
	t.log.loaded = true
	t.apply(changes, now)
	if left {
		t.log.unsaved, t.log.saveAt = true, now
	}
	if err := t.saveGap(); err != nil {
		t.say(slog.LevelError, "cannot save a gap in the record, retrying", err)
	}
	if err := t.tidy(now); err != nil {
		t.say(slog.LevelError, "cannot rotate log of tunnels, retrying", err)
	}
	t.missing(gone, now)
}

// line adds one line of the log to what has changed.
func (t *Table) line(line []byte, changes *batch) {
	e, err := parseEvent(t.config.Domain, line)
	if err != nil {
		t.badLine(err)
		return
	}
	changes.add(e)
}

// tidy goes on with the replacement of the log that has become large, by one of the steps in the package comment.
func (t *Table) tidy(now time.Time) error {
	switch {
	case t.log.unsaved && now.Before(t.log.saveAt):
		return nil
	case t.log.unsaved:
		t.log.saveAt = now.Add(t.reopenEvery) // if it goes wrong
		if err := t.saveState(); err != nil {
			return err
		}
		if err := os.Remove(t.log.old()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing old log of tunnels: %w", err)
		}
		t.log.unsaved = false
	case t.log.offset > t.maxLog:
		if current, err := t.log.current(); err != nil || !current {
			return nil // it is moved away already, or is about to be replaced
		}
		if err := os.Rename(t.log.path, t.log.old()); err != nil {
			return fmt.Errorf("moving log of tunnels: %w", err)
		}
		wake(t.reopen)
	}
	return nil
}

// missing has Envoy make the log where there is none. One that is about to start makes it by itself.
func (t *Table) missing(gone bool, now time.Time) {
	if !gone {
		t.log.goneAt = time.Time{}
		return
	}
	if t.log.goneAt.IsZero() {
		t.log.goneAt = now
	}
	if t.log.file != nil || now.Sub(t.log.goneAt) >= t.reopenEvery {
		wake(t.reopen)
	}
}

// keepOpen has Envoy open its log anew when that is wanted, until ctx ends.
func (t *Table) keepOpen(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-t.reopen:
		}
		bounded, cancel := context.WithTimeout(ctx, reopenTime)
		err := t.config.Reopen(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			t.say(slog.LevelError, "Envoy cannot reopen its log of tunnels, retrying", fmt.Errorf("reopening log of tunnels: %w", err))
		}
		pause.Reset(t.reopenEvery)
	}
}

func (t *Table) closeFiles() {
	t.files.Lock()
	defer t.files.Unlock()
	t.log.close()
	t.log.loaded = false // whoever runs it again begins with what is on disk
}

// badLine counts a line that can't be read, and logs each reason once. What is in the line is not logged: nobody has checked it.
func (t *Table) badLine(reason error) {
	t.mu.Lock()
	t.stats.BadLines++
	t.lose("cannot parse a line of the log of connections (" + reason.Error() + ")")
	t.mu.Unlock()
	t.say(slog.LevelWarn, "cannot parse a line of the log of tunnels, skipping it", reason)
}
