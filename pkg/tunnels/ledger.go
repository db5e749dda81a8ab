package tunnels

import (
	"fmt"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// unownedComparisons is the number of consecutive comparisons at which a connection may lack a recorded owner. With
	// accountInterval that is 45 s, and Envoy closes a handshake after 25 s.
	unownedComparisons = 3
	// closesPerComparison bounds the number of unknown connections closed after one comparison, so that a wrong record
	// cannot close all at once.
	closesPerComparison = 16
	// maxOwned exceeds the number of connections that Envoy accepts.
	maxOwned = 1 << 17
)

// owned is a connection that is not a tunnel, according to the record of its owner.
type owned struct {
	Owner string `json:"owner"`
	// Envoy's number of the connection; it differs between connections with the same addresses
	Connection string `json:"connection"`
	absent     bool   // the kernel had no such socket at the previous comparison
}

// cookie identifies one socket until the machine restarts.
type cookie = [8]byte

// ledger records which connections to the public port have an owner other than a node, and tracks the sockets without
// an owner. It does no input or output: its methods take records and lists of sockets, and return the sockets
// to close.
//
// A new socket without an owner is in its handshake. If it has no owner after unownedComparisons, it is unknown and is
// closed. That holds only while no record can be missing. After a gap in the log the sockets without an owner are
// doubtful, because their records may be missing: nothing is closed until each of them has ended or has an owner.
type ledger struct {
	owned    map[string]owned // by key
	pending  string           // why records may be missing since the previous comparison; "": none are
	gap      string           // the same reason, while there are doubtful sockets
	doubtful map[cookie]bool
	unowned  map[cookie]int // number of consecutive comparisons without an owner, by socket
	unknown  int            // number of sockets without an owner for too long
	blocked  string         // why the previous comparison was not possible
	compared bool
	failed   int // failed writes of Envoy that are already accounted for
}

func newLedger() ledger {
	return ledger{owned: map[string]owned{}, doubtful: map[cookie]bool{}, unowned: map[cookie]int{}}
}

// record adds a record of a connection that is not a tunnel. The end of a connection does not end a newer one with the
// same addresses, in whichever order their records arrive.
func (l *ledger) record(e event) {
	switch before, had := l.owned[e.Key]; {
	case e.name == eventStart && !had && len(l.owned) >= maxOwned:
		l.lost("there are more connections than the record can hold")
	case e.name == eventStart:
		l.owned[e.Key] = owned{Owner: e.owner, Connection: e.connection}
	case e.name == eventEnd && had && before.Connection == e.connection:
		delete(l.owned, e.Key)
	}
}

// lost records that records may be missing, and reports whether that is new.
func (l *ledger) lost(why string) bool {
	was := l.pending
	l.pending = why
	return was == ""
}

// reset removes everything. Call it when no Envoy runs.
func (l *ledger) reset() { *l = newLedger() }

// blind records that a comparison was not possible. The time without comparisons does not count as time without an
// owner.
func (l *ledger) blind(why string) {
	l.blocked = why
	clear(l.unowned)
}

// compare takes all sockets of the public port and a function that reports which belong to nodes in the table. It
// returns the sockets to close.
func (l *ledger) compare(present []sockets.Socket, hasNode func(sockets.Socket) bool) (unknown []sockets.Socket) {
	l.blocked, l.compared = "", true
	now, doubtful := map[cookie]int{}, map[cookie]bool{}
	keys := make(map[string]bool, len(present))
	for _, s := range present {
		at := key(s.Remote, s.Local)
		keys[at] = true
		if _, ok := l.owned[at]; ok || hasNode(s) {
			continue
		}
		c := s.Cookie
		now[c] = l.unowned[c] + 1
		switch {
		case l.doubtful[c] || l.pending != "":
			doubtful[c] = true
		case now[c] > unownedComparisons:
			unknown = append(unknown, s)
		}
	}
	if l.pending != "" {
		l.gap, l.pending = l.pending, ""
	}
	if l.unowned, l.doubtful, l.unknown = now, doubtful, len(unknown); len(doubtful) == 0 {
		l.gap = ""
	}
	l.prune(keys)
	if l.gap != "" {
		return nil
	}
	return unknown[:min(len(unknown), closesPerComparison)]
}

// prune removes the records of connections that the kernel does not have at two consecutive comparisons. One
// comparison is not enough, because a connection may begin during it.
func (l *ledger) prune(present map[string]bool) {
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

// why returns the reason to save for a gap; "": there is no gap.
func (l *ledger) why() string {
	if l.pending != "" {
		return l.pending
	}
	return l.gap
}

// incomplete returns why the record does not account for every connection to the public port, and the remedy; "": it
// accounts for all.
func (l *ledger) incomplete() string {
	switch {
	case l.blocked != "":
		return l.blocked
	case !l.compared:
		return "connections to the public port are not compared with the record yet; try again in some seconds"
	case l.pending != "":
		return l.pending + "; connections are compared with the record in some seconds"
	case l.gap != "":
		return fmt.Sprintf("%d connections to the public port may be tunnels without a record, because %s; "+
			"they end when this gateway is drained and restarted; its edges use the other gateways "+
			"meanwhile", len(l.doubtful), l.gap)
	case l.unknown > 0:
		return fmt.Sprintf("%d connections to the public port have no recorded owner and are being closed", l.unknown)
	}
	return ""
}
