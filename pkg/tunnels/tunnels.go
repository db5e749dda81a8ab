// Package tunnels keeps the table of the live tunnels of one gateway, from the lifecycle events that its Envoy writes.
// It closes denied tunnels, and excess tunnels of edges that have none on another of Envoy's workers. Input: lines of
// JSON from a file, the kernel's sockets (pkg/sockets) and denials. Output: snapshots, changes and closed TCP
// connections, or a replacement of Envoy that closes them. It must run in the network namespace of that Envoy. It does
// not know what the table is used for.
//
// Envoy appends each event to Config.Log, whether an agent runs or not. That file and two files beside it hold the
// whole state:
//
//	<Log>.state  all tunnels at some time
//	<Log>.old    events since then; only while the log is being replaced
//	<Log>        events since then
//
// Each record in the log names the owner of a connection to the gateway's public port: a tunnel of an edge, a node
// whose requests Envoy forwards to or from networks, or the target to which Envoy forwards the connection. A connection
// has a recorded owner, is in its handshake, or is unknown: see package ledger. Connections of nodes are closed like
// tunnels when their node is denied: see connections.
//
// An event states what holds after it, and the last event of a tunnel decides. So events may be applied again to a
// state that includes them, and the three files, read in this order, are right after a crash at any point of a
// replacement: the log is renamed; Envoy is told to reopen it; once the new file exists and the old one was read to
// its end, the state is written; the old file is removed.
//
// Events come from one program, and a full disk may lose some. So the table periodically checks whether each tunnel's
// socket still exists and whether each connection has a recorded owner. If a record may be missing, the table reports
// that it is incomplete.
//
// The package has more than 2,500 lines because applying the record, comparing it with the kernel and closing
// connections change the same table under one lock.
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
	"github.com/fairlead/fairlead/pkg/tunnels/history"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

// Tunnel is one live tunnel.
type Tunnel struct {
	Key    string    `json:"key"`  // unique in one gateway: both addresses and ports of its connection
	Node   string    `json:"node"` // node name of the edge
	ID     string    `json:"id"`   // Tunnel.spec.id
	Worker string    `json:"worker"`
	Since  time.Time `json:"since"`
}

// Config configures a Table.
type Config struct {
	Domain model.TunnelDomain
	// Log is the path of the file that Envoy appends its lifecycle events to. Envoy continues to write while no agent
	// runs, so that the next agent has every tunnel. Two files beside it belong to the table and must be kept as long.
	Log string
	// Denials is the path of a file that keeps what is denied, so that the next agent denies it before an xds-server
	// answers. empty: nothing is kept.
	Denials string
	// Reopen has Envoy reopen that file, after the table renamed it because it had become large.
	Reopen func(ctx context.Context) error
	// Workers is the number of Envoy's worker threads; 0: one. Tunnels is the minimum number of tunnels that each edge
	// keeps to this gateway; 0: two for each worker.
	Workers, Tunnels int
	// Public is the address of Envoy's public listener. Writes returns how much of its log Envoy has written; nil: the
	// sockets of Public are not compared with the record, and no connection without a recorded owner is closed.
	Public netip.AddrPort
	Writes func(ctx context.Context) (Writes, error)
	// Envoy returns the process id of Envoy. It is for an Envoy that reads the PROXY headers of load balancers: its
	// records of tunnels have the addresses in these headers, so the table finds the sockets by Envoy's file descriptors.
	// nil: records have the addresses of the sockets.
	Envoy func() (pid int, err error)
	// Cut is called for each denied tunnel or connection that was closed, with the time from its denial, or from its
	// begin if that was later, until the kernel has closed it. It must not block. nil: it is not called.
	Cut func(after time.Duration)
	// Request is called for each request on a connection of an apiserver or an edge, with the time of the request as its
	// Since. It must not block. nil: it is not called.
	Request func(Placed)
	// Replace has the running Envoy replaced by a new one, which ends all its connections, and returns at once; false
	// means that there is none. It is used where the kernel does not permit to close a connection. nil: each connection
	// is closed on its own, which requires the capability that sockets.Permitted checks. With Replace, Workers must be
	// at most one.
	Replace func() bool
	Logger  *slog.Logger
}

const (
	// pollInterval is small compared to the 200 ms for which Envoy buffers an event. One poll costs two system calls.
	pollInterval = 50 * time.Millisecond
	// checkInterval is the interval between lists of all sockets. A list of 10,000 takes about 10 ms.
	checkInterval = 5 * time.Second
	// reopenTime bounds one call of Config.Reopen; reopenInterval is the minimum time between two calls.
	reopenTime, reopenInterval = 3 * time.Second, 5 * time.Second
	// defaultMaxLog is about 16,000 events, which an agent reads in 0.2 s when it starts.
	defaultMaxLog = 8 << 20
)

// Table holds the state of one gateway. It is safe for concurrent use.
type Table struct {
	config Config
	kernel sockets.Kernel // used only by Run's goroutine that closes connections

	maxLog                  int64         // size above which the log is replaced
	checkEvery, reopenEvery time.Duration // see checkInterval and reopenInterval
	accountEvery            time.Duration // see accountInterval

	files sync.Mutex // guards the files and their progress
	log   logFile

	mu      sync.Mutex
	live    map[string]*entry
	unbound map[*entry]bool           // entries of live and of connections whose sockets were not looked up yet
	cookies map[sockets.Cookie]*entry // tunnels of live by their sockets; only with Config.Envoy
	conns   connections
	history history.History
	denied  denied
	unread  bool // the kept denials could not be read, and Deny was not called yet
	counts  counts
	ledger  ledger.Ledger
	cuts    map[model.EdgeRef]int // number of closed connections, by denied edge
	repairs repairs
	stats   Stats
	logged  logReasons

	replacement replacement
	stalled     stalledPaths
	unknown     int // connections without a recorded owner that a replacement of Envoy has to close

	unrecorded string      // see Unrecorded
	gapUnsaved atomic.Bool // a gap was recorded that the state file does not have

	saved []byte // content of Config.Denials; nil: not known. Used only by New and keepDenials

	notifyEnforce chan struct{} // notifies enforce of tunnels to look up or to close
	notifyCheck   chan struct{} // notifies enforce of a node with many connections
	notifyKeep    chan struct{} // notifies keepDenials of what is denied
	reopen        chan struct{} // notifies keepOpen that Envoy should reopen its log
}

// Stats are counts since the table was made. Tunnels, Egress, Forward, Unknown, Incomplete and
// Unserved are present values.
type Stats struct {
	Tunnels  int    `json:"tunnels"`
	Egress   int    `json:"egress"`   // connections of apiservers to networks
	Forward  int    `json:"forward"`  // connections of edges, for machines of their networks
	Cut      uint64 `json:"cut"`      // connections closed because they are denied
	CutFails uint64 `json:"cutFails"` // failed attempts to close a connection that is denied or has no recorded owner
	BadLines uint64 `json:"badLines"` // lines of the log that could not be parsed
	Unknown  int    `json:"unknown"`  // connections without a recorded owner for too long, or whose record may be missing
	Closed   uint64 `json:"closed"`   // connections closed because they had no recorded owner
	Replaced uint64 `json:"replaced"` // replacements of Envoy to close connections
	Unserved int    `json:"holes"`    // workers without a tunnel, of edges that have others, for longer than a few seconds
	Moved    uint64 `json:"moved"`    // tunnels closed so that the edge dials again, for another worker
	GivenUp  uint64 `json:"givenUp"`  // series of such attempts that did not help
	// Incomplete is the reason why the record does not account for each connection to the public port, and the remedy;
	// "": it accounts for all.
	Incomplete string `json:"incomplete,omitempty"`
}

// New returns a table without tunnels, which denies what the previous agent has kept. Run fills it.
func New(config Config) *Table {
	t := &Table{
		config: config, maxLog: defaultMaxLog, checkEvery: checkInterval, reopenEvery: reopenInterval,
		accountEvery: accountInterval,
		live:         map[string]*entry{}, unbound: map[*entry]bool{}, cookies: map[sockets.Cookie]*entry{},
		conns:  newConnections(),
		counts: newCounts(), ledger: ledger.New(), cuts: map[model.EdgeRef]int{},
		history: history.New(), repairs: newRepairs(rules{workers: max(config.Workers, 1), tunnels: config.Tunnels}),
		replacement:   replacement{doomed: map[*entry]bool{}},
		stalled:       stalledPaths{},
		notifyEnforce: make(chan struct{}, 1), notifyCheck: make(chan struct{}, 1),
		notifyKeep: make(chan struct{}, 1), reopen: make(chan struct{}, 1),
	}
	t.log.File = logfile.New(config.Log, t.badLine)
	t.loadDenials()
	return t
}

// Run follows the log until ctx ends, and then returns nil. It periodically checks that each tunnel's socket still
// exists. Errors do not end it: they are logged and the operation is retried.
func (t *Table) Run(ctx context.Context) error {
	defer t.closeFiles()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { t.follow(ctx); return nil })
	group.Go(func() error { t.keepOpen(ctx); return nil })
	group.Go(func() error { t.enforce(ctx); return nil })
	if t.config.Denials != "" {
		group.Go(func() error { t.keepDenials(ctx); return nil })
	}
	if t.config.Writes != nil {
		group.Go(func() error { t.account(ctx); return nil })
	}
	return group.Wait()
}

// Snapshot returns all tunnels that are reported, in no particular order, and the version of the table. Version 0 means
// that nothing is known yet: neither has Run read the files, nor was Fresh called.
func (t *Table) Snapshot() (all []Tunnel, version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all = make([]Tunnel, 0, len(t.live))
	for _, e := range t.live {
		if t.reports(e.tunnel) {
			all = append(all, e.Tunnel)
		}
	}
	return all, t.history.Version
}

// reports reports whether a tunnel is reported. Those of lanes come and go with each connection of a client, so they
// are limited, proven and closed like the others, but reported only if they are denied, and have to go. The caller
// holds mu.
func (t *Table) reports(of tunnel) bool { return !of.Lane || t.denied.has(of.Tunnel) }

// Edges returns the edges that have tunnels.
func (t *Table) Edges() map[model.EdgeRef]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	edges := map[model.EdgeRef]bool{}
	for _, e := range t.live {
		edges[model.EdgeRef{Node: e.Node, ID: e.ID}] = true
	}
	return edges
}

// Changes blocks until the version of the table differs from since, and returns the changes and the new version: the
// reported tunnels that were added or replaced, and the keys of removed ones. Both are empty if only UnservedWorkers,
// Connections or Stats.Incomplete changed. ok is false if the table no longer has the changes, and the caller needs a
// Snapshot. When ctx ends, Changes returns no changes, since, and true.
func (t *Table) Changes(ctx context.Context, since uint64) (opened []Tunnel, closed []string, version uint64, ok bool) {
	for {
		t.mu.Lock()
		keys, known := t.history.Since(since)
		version, changed := t.history.Version, t.history.Changed
		for _, key := range keys {
			if key == statusKey {
				continue
			}
			if e, ok := t.live[key]; ok && t.reports(e.tunnel) {
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

// Stats returns the current statistics.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Tunnels, t.stats.Unknown = len(t.live), t.ledger.Unaccounted()
	t.stats.Egress, t.stats.Forward = t.conns.owners[ownerEgress], t.conns.owners[ownerForward]
	if t.config.Writes != nil {
		t.stats.Incomplete = t.ledger.Incomplete()
	}
	return t.stats
}

// notify puts a token into a channel of capacity one, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
