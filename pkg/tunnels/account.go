package tunnels

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

const (
	// accountInterval is the interval between comparisons of the kernel's sockets with the record.
	accountInterval = 15 * time.Second
	// blindInterval is the wait after a comparison that was not possible, for example while Envoy starts.
	blindInterval = time.Second
	// blindLimit is for how many intervals comparisons may be impossible before that is an error: an Envoy with 10,000
	// workload clusters needs 24 s to start.
	blindLimit = 4
)

// Writes is what Envoy reports about the files that it writes.
type Writes struct {
	Failed   int // writes that Envoy gave up, since it started
	Buffered int // bytes that are not written yet
}

// accountant compares the sockets of the public port with the record. It is used by one goroutine only.
type accountant struct {
	kernel   sockets.Kernel
	offset   int64     // of the log, at the previous comparison
	buffered bool      // whether bytes were not written yet at the previous comparison
	worked   time.Time // when a comparison last worked, or the first one was tried
}

// isError reports whether an incomplete record is an error. That a comparison is not possible is one only after a time.
func (a *accountant) isError(possible bool, after time.Duration) bool {
	if possible || a.worked.IsZero() {
		a.worked = time.Now()
	}
	return possible || time.Since(a.worked) >= after
}

// account compares the sockets with the record periodically until ctx ends.
func (t *Table) account(ctx context.Context) {
	a := &accountant{}
	defer a.kernel.Close()
	for ctx.Err() == nil {
		wait := t.accountEvery
		if !t.compare(ctx, a) {
			wait = min(wait, blindInterval)
		}
		_ = retry.Sleep(ctx, wait)
	}
}

// compare compares the sockets with the record once and closes unknown connections. It reports whether a comparison
// was possible.
func (t *Table) compare(ctx context.Context, a *accountant) bool {
	present, why := t.examine(ctx, a)
	t.mu.Lock()
	var unknown []sockets.Socket
	before, gap := t.ledger.Incomplete(), t.ledger.Gap()
	if why != "" {
		t.ledger.Blind(why)
	} else {
		unknown = t.ledger.Compare(present, t.hasNode)
	}
	after := t.ledger.Incomplete()
	if gap != t.ledger.Gap() {
		t.gapUnsaved.Store(true)
	}
	if after != before && t.history.Version > 0 {
		t.history.Add([]string{statusKey}) // notifies readers of Incomplete
	}
	t.mu.Unlock()
	if a.isError(why == "", blindLimit*t.accountEvery) && after != "" {
		t.logOnce(slog.LevelError, "record of connections is incomplete", errors.New(after))
	}
	if t.config.Replace != nil {
		t.leaveUnknown(len(unknown))
		return why == ""
	}
	closed, peer := uint64(0), ""
	for _, s := range unknown {
		switch err := a.kernel.Destroy(s); {
		case errors.Is(err, sockets.ErrGone):
		case err != nil:
			t.logOnce(slog.LevelError, "cannot close a connection without a recorded owner, retrying", err)
		default:
			closed, peer = closed+1, s.Remote.String()
		}
	}
	if closed > 0 {
		t.config.Logger.Warn("closed connections without a recorded owner", "closed", closed, "last_peer", peer)
		t.mu.Lock()
		t.stats.Closed += closed
		t.mu.Unlock()
	}
	return why == ""
}

// examine reads the records of all connections and returns the sockets of the public port. If that is not possible,
// why is the reason.
func (t *Table) examine(ctx context.Context, a *accountant) (present []sockets.Socket, why string) {
	writes, err := t.config.Writes(ctx)
	if err != nil {
		return nil, "Envoy does not answer; restart this gateway if that persists"
	}
	if present, why = t.publicSockets(&a.kernel); why != "" {
		return nil, why
	}
	t.poll(time.Now())
	t.files.Lock()
	offset, loaded := t.log.Offset(), t.log.loaded
	t.files.Unlock()
	stalled := a.buffered && writes.Buffered > 0 && offset == a.offset
	a.buffered, a.offset = writes.Buffered > 0, offset
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ledger.MoreFailed(writes.Failed) {
		t.lose("Envoy lost lines of its log of connections: check the disk")
	}
	t.loseUnrecorded()
	switch {
	case !loaded:
		return nil, "cannot read the log of connections: check its folder and the disk"
	case stalled:
		return nil, "Envoy cannot write its log of connections: check the disk"
	}
	return present, ""
}

// publicSockets returns the connections at the public address, except connections that another program's listener at a
// more specific address accepts. If that is not possible, why is the reason.
func (t *Table) publicSockets(k *sockets.Kernel) (present []sockets.Socket, why string) {
	listeners, err := k.Dump(sockets.Listening)
	if err == nil {
		present, err = k.Dump(sockets.Connected)
	}
	if err != nil {
		t.logOnce(slog.LevelError, "cannot compare connections with the record", err)
		return nil, "cannot read the connections from the kernel: see the log of the gateway-agent"
	}
	at := []netip.AddrPort{t.config.Public}
	others, here := map[netip.AddrPort]bool{}, false
	for _, s := range listeners {
		switch {
		case s.Local.Addr().IsUnspecified() && s.Local.Port() == t.config.Public.Port(),
			s.Local == sockets.Plain(t.config.Public):
			here = true
		case s.Local.Port() == t.config.Public.Port():
			others[s.Local] = true
		}
	}
	if !here {
		return nil, fmt.Sprintf(
			"nothing listens at the public address %s in the network namespace of the gateway-agent", t.config.Public,
		)
	}
	found := present[:0]
	for _, s := range present {
		if sockets.AcceptedAt(at, s.Local) && !others[s.Local] {
			found = append(found, s)
		}
	}
	return found, ""
}

// hasNode reports whether a socket belongs to a tunnel or a node's connection of the table. The caller holds the lock.
func (t *Table) hasNode(s sockets.Socket) bool {
	if t.conns.all[ledger.Key(s.Remote, s.Local)] != nil {
		return true
	}
	if t.config.Envoy != nil {
		return t.cookies[s.Cookie] != nil
	}
	return t.live[ledger.Key(s.Remote, s.Local)] != nil || t.live[s.Remote.String()] != nil
}

// lose records that records may be missing. The caller holds the lock.
func (t *Table) lose(why string) {
	if t.ledger.Lost(why) {
		t.gapUnsaved.Store(true)
	}
}

// Unrecorded stores the reason why connections have no record of their owner under Envoy's present configuration; ""
// means that they have one.
func (t *Table) Unrecorded(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loseUnrecorded() // for connections that began before this call
	if t.unrecorded != why {
		t.unrecorded = why
		t.gapUnsaved.Store(true)
	}
	t.loseUnrecorded()
}

// loseUnrecorded records a gap while connections begin without a record. It is called at each comparison. The caller
// holds the lock.
func (t *Table) loseUnrecorded() {
	if t.unrecorded != "" {
		t.lose("connections begin without a record (" + t.unrecorded + ")")
	}
}
