package tunnels

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

// logFile is the log with the table's progress in reading and replacing it.
type logFile struct {
	logfile.File
	loaded  bool      // the files that existed at the start were read
	unsaved bool      // a file was left, and its events are not in the state file yet
	saveAt  time.Time // when to save the state, if unsaved
	goneAt  time.Time // since when the file does not exist; zero: it exists
}

// Fresh removes all tunnels and the files. Call it when no Envoy runs and before one is started; until then the files
// belong to the running Envoy. After an error, call it again.
func (t *Table) Fresh() error {
	t.files.Lock()
	defer t.files.Unlock()
	t.log.Close()
	if err := t.removeFiles(); err != nil {
		return err
	}
	t.mu.Lock()
	t.ledger.Reset()
	t.unknown = 0
	empty := stateFile{Unrecorded: t.unrecorded} // the next Envoy starts with the same configuration
	t.mu.Unlock()
	// From here on, a missing state file is a gap in the record.
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
	for _, e := range t.conns.all {
		t.disconnect(e)
	}
	clear(t.repairs.turns)
	t.history.Add(keys)
	return nil
}

// follow reads the files periodically until ctx ends.
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

// poll reads what was appended since the previous call, and advances the replacement of the log. It applies what it
// reads in parts, and does not wait for an Envoy that appends faster.
func (t *Table) poll(now time.Time) {
	t.files.Lock()
	defer t.files.Unlock()
	gone := false
	for rounds := t.log.Rounds(); rounds > 0; rounds-- {
		read, err := t.read(now)
		if err != nil {
			t.logOnce(slog.LevelError, "cannot read log of tunnels, retrying", err)
		}
		if err != nil && !t.log.loaded {
			return // The next call continues: reading a line again would count a request or an opened tunnel twice.
		}
		if gone = read.Gone; !read.More {
			break
		}
	}
	t.log.loaded = true
	if err := t.saveGap(); err != nil {
		t.logOnce(slog.LevelError, "cannot save a gap in the record, retrying", err)
	}
	if err := t.tidy(now); err != nil {
		t.logOnce(slog.LevelError, "cannot rotate log of tunnels, retrying", err)
	}
	t.missing(gone, now)
}

// read reads and applies a part of the log.
func (t *Table) read(now time.Time) (logfile.Progress, error) {
	changes := newBatch(t.repairs.workers)
	if !t.log.loaded && !t.log.Opened() {
		t.load(&changes)
	}
	read, err := t.log.Read(func(line []byte) { t.line(line, &changes) })
	t.apply(changes, now)
	if read.Left {
		t.log.unsaved, t.log.saveAt = true, now
	}
	for _, e := range changes.others {
		if t.config.Request != nil && e.name == eventRequest && e.owner != ownerPeer {
			t.config.Request(Placed{Tunnel: e.Tunnel, From: e.Remote.Addr(), Owner: e.owner})
		}
	}
	return read, err
}

// line parses one line of the log and adds it to the changes.
func (t *Table) line(line []byte, changes *batch) {
	e, err := parseEvent(t.config.Domain, line)
	if err != nil {
		t.badLine(err)
		return
	}
	changes.add(e)
}

// tidy advances the replacement of a log that has become large by one of the steps that the package comment lists.
func (t *Table) tidy(now time.Time) error {
	switch {
	case t.log.unsaved && now.Before(t.log.saveAt):
		return nil
	case t.log.unsaved:
		t.log.saveAt = now.Add(t.reopenEvery) // the time of the next attempt, if this one fails
		if err := t.saveState(); err != nil {
			return err
		}
		if err := t.log.Remove(); err != nil {
			return err
		}
		t.log.unsaved = false
	case t.log.Offset() > t.maxLog:
		moved, err := t.log.Move()
		if moved {
			notify(t.reopen)
		}
		return err
	}
	return nil
}

// missing has Envoy create the log if there is none. An Envoy that is about to start creates it without a request.
func (t *Table) missing(gone bool, now time.Time) {
	if !gone {
		t.log.goneAt = time.Time{}
		return
	}
	if t.log.goneAt.IsZero() {
		t.log.goneAt = now
	}
	if t.log.Opened() || now.Sub(t.log.goneAt) >= t.reopenEvery {
		notify(t.reopen)
	}
}

// keepOpen has Envoy reopen its log on request, until ctx ends.
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
			t.logOnce(
				slog.LevelError, "Envoy cannot reopen its log of tunnels, retrying",
				fmt.Errorf("reopening log of tunnels: %w", err),
			)
		}
		pause.Reset(t.reopenEvery)
	}
}

func (t *Table) closeFiles() {
	t.files.Lock()
	defer t.files.Unlock()
	t.log.Close()
	t.log.loaded = false // the next Run starts from the files on disk
}

// badLine counts a line that cannot be parsed, and logs each reason once. It does not log the line, because its
// content is not validated.
func (t *Table) badLine(reason error) {
	t.mu.Lock()
	t.stats.BadLines++
	t.lose("cannot parse a line of the log of connections (" + reason.Error() + ")")
	t.mu.Unlock()
	t.logOnce(slog.LevelWarn, "cannot parse a line of the log of tunnels, skipping it", reason)
}
