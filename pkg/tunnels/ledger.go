package tunnels

import (
	"fmt"

	"github.com/fairlead/fairlead/pkg/sockets"
)

const (
	// unownedLooks is for how many looks in a row a connection may have no recorded owner. Its handshake has ended by
	// then: with accountInterval that is 45 s, and Envoy closes a handshake after 25 s.
	unownedLooks = 3
	// closesPerLook bounds how many unknown connections are closed at one look. A wrong record then cannot close all at
	// once.
	closesPerLook = 16
	// maxOwned is more than the connections that Envoy accepts.
	maxOwned = 1 << 17
)

// owned is a connection that is no tunnel, by the record of its owner.
type owned struct {
	Owner      string `json:"owner"`
	Connection string `json:"connection"` // Envoy's number of it: another connection with the same addresses has another
	absent     bool   // the kernel did not have it at the last look
}

// cookie is a socket's: of this socket alone, for as long as the machine runs.
type cookie = [8]byte

// ledger says which connections to the public port have a recorded owner other than a tunnel, and what is known of
// those without any. It does no input or output: records and looks go in, the sockets to close come out.
//
// A socket without an owner is in its handshake at first. If it has none after unownedLooks it is unknown, and closed.
// That holds only while no record can be missing. After a gap in the log the sockets without an owner are doubtful,
// because their record may be among those that are missing: nothing is closed until each of them has ended or has an
// owner.
type ledger struct {
	owned    map[string]owned // by key
	pending  string           // why records may be missing since the last look; "": none are
	gap      string           // the same, while there are doubtful sockets
	doubtful map[cookie]bool
	unowned  map[cookie]int // sockets without an owner: at how many looks in a row
	unknown  int            // of those: for too long
	blocked  string         // why the last look found out nothing
	looked   bool
	failed   int // writes of Envoy that failed, as far as that is taken into account
}

func newLedger() ledger {
	return ledger{owned: map[string]owned{}, doubtful: map[cookie]bool{}, unowned: map[cookie]int{}}
}

// record takes a record of a connection that is no tunnel. The end of a connection does not end a newer one with the
// same addresses, whichever of their records comes first.
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

// lost notes that records may be missing, and says whether that is new.
func (l *ledger) lost(why string) bool {
	was := l.pending
	l.pending = why
	return was == ""
}

// reset forgets everything: no Envoy runs.
func (l *ledger) reset() { *l = newLedger() }

// blind notes a look that found out nothing. Time without looks does not count as time without an owner.
func (l *ledger) blind(why string) {
	l.blocked = why
	clear(l.unowned)
}

// look takes all sockets of the public port and which of them are tunnels of the table, and returns those to close.
func (l *ledger) look(present []sockets.Socket, isTunnel func(sockets.Socket) bool) (unknown []sockets.Socket) {
	l.blocked, l.looked = "", true
	now, doubtful := map[cookie]int{}, map[cookie]bool{}
	keys := make(map[string]bool, len(present))
	for _, s := range present {
		at := key(s.Remote, s.Local)
		keys[at] = true
		if _, ok := l.owned[at]; ok || isTunnel(s) {
			continue
		}
		c := s.Cookie
		now[c] = l.unowned[c] + 1
		switch {
		case l.doubtful[c] || l.pending != "":
			doubtful[c] = true
		case now[c] > unownedLooks:
			unknown = append(unknown, s)
		}
	}
	if l.pending != "" {
		l.gap, l.pending = l.pending, ""
	}
	if l.unowned, l.doubtful, l.unknown = now, doubtful, len(unknown); len(doubtful) == 0 {
		l.gap = ""
	}
	l.forget(keys)
	if l.gap != "" {
		return nil
	}
	return unknown[:min(len(unknown), closesPerLook)]
}

// forget drops the records of connections that the kernel does not have at two looks in a row: one may have begun
// during the first.
func (l *ledger) forget(present map[string]bool) {
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

// why is what a persistent record of a gap says; "": there is none.
func (l *ledger) why() string {
	if l.pending != "" {
		return l.pending
	}
	return l.gap
}

// incomplete says why the record does not account for every connection to the public port, and the cure; "": it does.
func (l *ledger) incomplete() string {
	switch {
	case l.blocked != "":
		return l.blocked
	case !l.looked:
		return "connections to the public port are not compared with the record yet; try again in some seconds"
	case l.pending != "":
		return l.pending + "; connections are compared with the record in some seconds"
	case l.gap != "":
		return fmt.Sprintf("%d connections to the public port may be tunnels without a record, because %s; "+
			"they end when this gateway is drained and restarted; its edges use the other gateways meanwhile", len(l.doubtful), l.gap)
	case l.unknown > 0:
		return fmt.Sprintf("%d connections to the public port have no recorded owner and are being closed", l.unknown)
	}
	return ""
}
