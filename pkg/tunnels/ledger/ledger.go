// Package ledger records which connections to the public port of one gateway have an owner other than a node, and
// tracks the sockets without an owner. It does no input or output: it takes records and lists of sockets, and returns
// the sockets to close. It is not safe for concurrent use.
//
// A new socket without an owner is in its handshake, or its node has sent nothing yet. If it has no owner after
// Comparisons, it is unknown and is closed. That holds only while no record can be missing. After a gap in the record
// the sockets without an owner are doubtful, because their records may be missing: nothing is closed until each of them
// has ended or has an owner. Only if a node is denied that may own one of them, and new records arrive, all of them are
// closed: a denied node keeps no connection.
package ledger

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// Comparisons is the number of consecutive comparisons at which a connection may lack a recorded owner. The table
	// compares every 15 s, so that is 75 s. Envoy closes a handshake after 25 s, and a connection on which a node sends
	// nothing after TLS, so that nothing identifies it, 65 s after it was accepted.
	Comparisons = 5
	// closesPerComparison bounds the number of unknown connections closed after one comparison, so that a wrong record
	// cannot close all at once.
	closesPerComparison = 16
	// MaxOwned exceeds the number of connections that Envoy accepts.
	MaxOwned = 1 << 17
)

// Owned is a connection that is not a tunnel, according to the record of its owner.
type Owned struct {
	Owner string `json:"owner"`
	// Envoy's number of the connection; it differs between connections with the same addresses
	Connection string `json:"connection"`
	absent     bool   // the kernel had no such socket at the previous comparison
}

// Ledger is the record of one gateway, and the state of the last comparison with it.
type Ledger struct {
	owned    map[string]Owned // by key
	pending  string           // why records may be missing since the previous comparison; "": none are
	gap      string           // the same reason, while there are doubtful sockets
	doubtful map[sockets.Cookie]bool
	unowned  map[sockets.Cookie]int // number of consecutive comparisons without an owner, by socket
	unknown  int                    // number of sockets without an owner for too long
	blocked  string                 // why the previous comparison was not possible
	compared bool
	denied   bool // a node was denied since the record last accounted for all connections
	failed   int  // failed writes of Envoy that are already accounted for
}

// New returns a ledger without records.
func New() Ledger {
	return Ledger{owned: map[string]Owned{}, doubtful: map[sockets.Cookie]bool{}, unowned: map[sockets.Cookie]int{}}
}

// Key returns the key of a connection. It has both addresses because one address of a node may have two connections,
// to two addresses of the gateway. If local is not valid, it is not known.
func Key(remote, local netip.AddrPort) string {
	if !local.IsValid() {
		return remote.String()
	}
	return fmt.Sprintf("%s>%s", remote, local)
}

// Start adds a record of the start of a connection that is not a tunnel.
func (l *Ledger) Start(key string, o Owned) {
	if _, had := l.owned[key]; !had && len(l.owned) >= MaxOwned {
		l.Lost("there are more connections than the record can hold")
		return
	}
	l.owned[key] = o
}

// End adds a record of the end of a connection that is not a tunnel. It does not end a newer connection with the same
// addresses, in whichever order their records arrive.
func (l *Ledger) End(key, connection string) {
	if before, had := l.owned[key]; had && before.Connection == connection {
		delete(l.owned, key)
	}
}

// Owned returns all connections of the record, by key.
func (l *Ledger) Owned() map[string]Owned { return maps.Clone(l.owned) }

// Restore adds the connections of an earlier Owned.
func (l *Ledger) Restore(all map[string]Owned) { maps.Copy(l.owned, all) }

// Unaccounted returns the number of sockets without an owner for too long, or whose record may be missing.
func (l *Ledger) Unaccounted() int { return l.unknown + len(l.doubtful) }

// MoreFailed takes the number of writes of the record that have failed since Envoy started, and reports whether it has
// grown.
func (l *Ledger) MoreFailed(writes int) bool {
	more := writes > l.failed
	l.failed = writes
	return more
}

// Lost records that records may be missing, and reports whether that is new.
func (l *Ledger) Lost(why string) bool {
	was := l.pending
	l.pending = why
	return was == ""
}

// Denied records whether another node is denied than before.
func (l *Ledger) Denied(another bool) { l.denied = l.denied || another }

// Reset removes everything. Call it when no Envoy runs.
func (l *Ledger) Reset() { *l = New() }

// Blind records that a comparison was not possible. The time without comparisons does not count as time without an
// owner.
func (l *Ledger) Blind(why string) {
	l.blocked = why
	clear(l.unowned)
}

// Compare takes all sockets of the public port and a function that reports which belong to nodes in the table. It
// returns the sockets to close: some of the unknown ones, or all doubtful ones.
func (l *Ledger) Compare(present []sockets.Socket, hasNode func(sockets.Socket) bool) (unknown []sockets.Socket) {
	l.blocked, l.compared = "", true
	now, doubtful := map[sockets.Cookie]int{}, map[sockets.Cookie]bool{}
	keys := make(map[string]bool, len(present))
	var inDoubt []sockets.Socket
	for _, s := range present {
		at := Key(s.Remote, s.Local)
		keys[at] = true
		if _, ok := l.owned[at]; ok || hasNode(s) {
			continue
		}
		c := s.Cookie
		now[c] = l.unowned[c] + 1
		switch {
		case l.doubtful[c] || l.pending != "":
			doubtful[c] = true
			inDoubt = append(inDoubt, s)
		case now[c] > Comparisons:
			unknown = append(unknown, s)
		}
	}
	lossy := l.pending != ""
	if lossy {
		l.gap, l.pending = l.pending, ""
	}
	if l.unowned, l.doubtful, l.unknown = now, doubtful, len(unknown); len(doubtful) == 0 {
		l.gap = ""
	}
	l.prune(keys)
	switch {
	case l.gap == "":
		l.denied = false
	case l.denied && !lossy:
		return inDoubt
	default:
		return nil
	}
	return unknown[:min(len(unknown), closesPerComparison)]
}

// prune removes the records of connections that the kernel does not have at two consecutive comparisons. One
// comparison is not enough, because a connection may begin during it.
func (l *Ledger) prune(present map[string]bool) {
	for at, o := range l.owned {
		switch {
		case present[at]:
			o.absent = false
		case o.absent:
			delete(l.owned, at)
			continue
		default:
			o.absent = true
		}
		l.owned[at] = o
	}
}

// Gap returns the reason to save for a gap; "": there is no gap.
func (l *Ledger) Gap() string {
	if l.pending != "" {
		return l.pending
	}
	return l.gap
}

// Incomplete returns why the record does not account for every connection to the public port, and the remedy; "": it
// accounts for all.
func (l *Ledger) Incomplete() string {
	switch {
	case l.blocked != "":
		return l.blocked
	case !l.compared:
		return "connections to the public port are not compared with the record yet; try again in some seconds"
	case l.pending != "":
		return l.pending + "; connections are compared with the record in some seconds"
	case l.gap != "":
		return fmt.Sprintf("%d connections to the public port may be tunnels without a record, because %s; "+
			"they end when this gateway is drained and restarted, and all at once after an edge is revoked; its "+
			"edges use the other gateways meanwhile", len(l.doubtful), l.gap)
	case l.unknown > 0:
		return fmt.Sprintf("%d connections to the public port have no recorded owner and are being closed", l.unknown)
	}
	return ""
}
