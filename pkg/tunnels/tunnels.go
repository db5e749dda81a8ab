// Package tunnels keeps the table of the live tunnels of one gateway, from the lifecycle events that its Envoy writes.
// It closes those that are denied, and those in excess where an edge has none on another of Envoy's workers. Lines of
// JSON from a file, the sockets of the kernel (pkg/sockets) and denials go in; snapshots, changes, and TCP connections
// that end come out. It must run in the network namespace of that Envoy, and does not know what the table is used for.
//
// Envoy appends each event to Config.Log, whether an agent runs or not. What that file, together with two beside it,
// says is all that there is to know:
//
//	<Log>.state  all tunnels at some time
//	<Log>.old    events since then; only while the log is being replaced
//	<Log>        events since then
//
// All records in it name the owner of a connection to the gateway's public port: a tunnel of an edge, or what Envoy
// passes connections on to. A connection has a recorded owner, or is in its handshake, or is unknown: see ledger.
//
// An event says what is so after it, and the last event of a tunnel decides. So events may be read again on top of a
// state that has them already, and the three files, read in this order, are right after a crash at any point: the log
// is renamed; Envoy is told to open it anew; when the new one is there and the old one was read to its end, the state
// is written; the old one is removed.
//
// Events come from one program and could be lost with a full disk, so the kernel is asked from time to time whether
// each tunnel's socket is still there, and whether each connection has a recorded owner. Where a record can be missing,
// the table says that it is incomplete.
package tunnels

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// Tunnel is one live tunnel.
type Tunnel struct {
	Key    string    `json:"key"`  // unique in one gateway: both addresses and ports of its connection
	Node   string    `json:"node"` // node name of the edge
	ID     string    `json:"id"`   // Tunnel.spec.id
	Worker string    `json:"worker"`
	Since  time.Time `json:"since"`
}

// Config is what a Table stands on.
type Config struct {
	Domain model.TunnelDomain
	// Log is the file to which Envoy appends its lifecycle events. Envoy goes on writing while the agent is away, so that
	// the next agent knows of every tunnel. Two files beside it belong to the table, and must be kept as long.
	Log string
	// Reopen has Envoy open that file anew, after it was moved away because it had become large.
	Reopen func(ctx context.Context) error
	// Workers is how many worker threads that Envoy has; 0: one. Tunnels is how many tunnels each edge keeps to this
	// gateway at least; 0: two for each worker.
	Workers, Tunnels int
	// Public is the address of Envoy's public listener. Writes says what Envoy has written of its log; nil: the sockets of
	// Public are not compared with the record, and no connection without a recorded owner is closed.
	Public netip.AddrPort
	Writes func(ctx context.Context) (Writes, error)
	Logger *slog.Logger
}

const (
	// pollInterval is small beside the 200 ms that an event waits in Envoy. A look costs two system calls.
	pollInterval = 50 * time.Millisecond
	// checkInterval is how often the kernel is asked for all sockets: 10,000 take it about 10 ms.
	checkInterval = 5 * time.Second
	// reopenTime bounds one call of Config.Reopen, reopenInterval is the least time between two.
	reopenTime, reopenInterval = 3 * time.Second, 5 * time.Second
	// defaultMaxLog is about 16,000 events, which are read in 0.2 s when an agent starts.
	defaultMaxLog = 8 << 20
)

// Table is the state of one gateway. It is safe for concurrent use.
type Table struct {
	config Config
	kernel sockets.Kernel // of Run's goroutine that cuts, alone

	maxLog                  int64         // the log is replaced when it is larger
	checkEvery, reopenEvery time.Duration // see checkInterval and reopenInterval
	accountEvery            time.Duration // see accountInterval

	files sync.Mutex // guards the files and what follows them
	log   logFiles

	mu      sync.Mutex
	live    map[string]*entry
	unbound map[string]*entry // those of live whose socket was not looked up yet
	history history
	denied  denied
	counts  counts
	ledger  ledger
	cuts    map[model.EdgeRef]int // connections of denied edges that were closed
	repairs repairs
	stats   Stats
	said    reasons

	unrecorded string      // see Unrecorded
	gapUnsaved atomic.Bool // a gap is noted that the state does not have

	kick   chan struct{} // holds one if there is something to bind or to cut
	reopen chan struct{} // holds one if Envoy should open its log
}

// Stats are counts since the table was made, but for Tunnels, Unknown, Incomplete and Holes, which are as of now.
type Stats struct {
	Tunnels  int    `json:"tunnels"`
	Cut      uint64 `json:"cut"`      // connections that were ended because they are denied
	CutFails uint64 `json:"cutFails"` // attempts to end a connection that did not work
	BadLines uint64 `json:"badLines"` // of the log, that could not be read
	Unknown  int    `json:"unknown"`  // connections that have no recorded owner for too long, or whose record may be missing
	Closed   uint64 `json:"closed"`   // connections that were closed because they had no recorded owner
	Holes    int    `json:"holes"`    // workers without a tunnel of an edge that has others, for longer than a few seconds
	Moved    uint64 `json:"moved"`    // tunnels that were ended to have them dialled again, for another worker
	GivenUp  uint64 `json:"givenUp"`  // holes that this did not close
	// Incomplete says why the record does not account for each connection to the public port, and the cure; "": it does.
	Incomplete string `json:"incomplete,omitempty"`
}

// New returns an empty table; Run fills it.
func New(config Config) *Table {
	t := &Table{
		config: config, maxLog: defaultMaxLog, checkEvery: checkInterval, reopenEvery: reopenInterval,
		accountEvery: accountInterval,
		log:          logFiles{follower: follower{path: config.Log}},
		live:         map[string]*entry{}, unbound: map[string]*entry{},
		counts: newCounts(), ledger: newLedger(), cuts: map[model.EdgeRef]int{},
		history: newHistory(), repairs: newRepairs(rules{workers: max(config.Workers, 1), tunnels: config.Tunnels}),
		kick: make(chan struct{}, 1), reopen: make(chan struct{}, 1),
	}
	t.log.bad = t.badLine
	return t
}

// Run follows the file until ctx ends, and returns nil then. It looks from time to time whether each tunnel's socket is
// still there. Nothing that goes wrong ends it: it is logged and tried again.
func (t *Table) Run(ctx context.Context) error {
	defer t.closeFiles()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { t.follow(ctx); return nil })
	group.Go(func() error { t.keepOpen(ctx); return nil })
	group.Go(func() error { t.guard(ctx); return nil })
	if t.config.Writes != nil {
		group.Go(func() error { t.account(ctx); return nil })
	}
	return group.Wait()
}

// Snapshot returns all tunnels, in no order, and a version. Version 0 means that nothing is known yet: neither has Run
// read the files, nor was Fresh called.
func (t *Table) Snapshot() (all []Tunnel, version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all = make([]Tunnel, 0, len(t.live))
	for _, e := range t.live {
		all = append(all, e.Tunnel)
	}
	return all, t.history.version
}

// Edges are those that have tunnels.
func (t *Table) Edges() map[model.EdgeRef]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	edges := map[model.EdgeRef]bool{}
	for _, e := range t.live {
		edges[model.EdgeRef{Node: e.Node, ID: e.ID}] = true
	}
	return edges
}

// Changes waits for a version other than that which Snapshot or Changes returned, and returns what has changed since:
// the tunnels that there are, some of which may have been there with that key before, and the keys of those that are
// gone: none of either if it is Holes that have changed. ok is false if it does not know any more and a snapshot is
// needed. When ctx ends it returns at once, with no changes and the same version.
func (t *Table) Changes(ctx context.Context, since uint64) (opened []Tunnel, closed []string, version uint64, ok bool) {
	for {
		t.mu.Lock()
		keys, known := t.history.since(since)
		version, changed := t.history.version, t.history.changed
		for _, key := range keys {
			if key == holesKey {
				continue
			}
			if e, ok := t.live[key]; ok {
				opened = append(opened, e.Tunnel)
			} else {
				closed = append(closed, key)
			}
		}
		t.mu.Unlock()
		if !known || version != since {
			return opened, closed, version, known
		}
		select {
		case <-ctx.Done():
			return nil, nil, since, true
		case <-changed:
		}
	}
}

// Deny cuts the tunnels of these, now and whenever one appears, until the next call. Nothing is cut while Run does not
// run.
func (t *Table) Deny(d model.Denied) {
	t.mu.Lock()
	t.denied = newDenied(d)
	t.keepCuts()
	t.mu.Unlock()
	wake(t.kick)
}

// Stats returns the counts.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Tunnels, t.stats.Unknown = len(t.live), t.ledger.unknown+len(t.ledger.doubtful)
	if t.config.Writes != nil {
		t.stats.Incomplete = t.ledger.incomplete()
	}
	return t.stats
}

// denied are the sets of model.Denied.
type denied struct {
	edges map[model.EdgeRef]bool
	ids   map[string]bool
}

func newDenied(d model.Denied) denied {
	set := denied{edges: make(map[model.EdgeRef]bool, len(d.Edges)), ids: make(map[string]bool, len(d.IDs))}
	for _, edge := range d.Edges {
		set.edges[edge] = true
	}
	for _, id := range d.IDs {
		set.ids[id] = true
	}
	return set
}

func (d denied) has(t Tunnel) bool {
	return d.edges[model.EdgeRef{Node: t.Node, ID: t.ID}] || d.ids[t.ID]
}

// wake puts one into a channel that holds one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
