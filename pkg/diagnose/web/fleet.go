package web

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// maxLog is how many changes are remembered: whoever has seen none for longer reads the whole fleet again.
	maxLog = 32_768
	// maxDelta is how many rows one event carries, so that no event is larger than about 200 kB.
	maxDelta = 500
)

// fleet holds the newest row of each Cluster, and the order in which they changed. Whoever follows it keeps nothing but a
// cursor, so a slow reader costs no memory: it gets the newest row of what has changed since. It is safe for concurrent use.
type fleet struct {
	epoch string // cursors of another one, before a restart or of another server, mean nothing here
	log   int    // how many changes are remembered

	mu      sync.Mutex
	seq     uint64
	rows    map[model.Key]entry
	changes []change // the newest last
	changed chan struct{}
}

// entry is a row as it is sent, and when it changed.
type entry struct {
	row []byte
	seq uint64
}

// change says that the row of a Cluster came, changed or went.
type change struct {
	key model.Key
	seq uint64
}

// delta is what has changed since a cursor.
type delta struct {
	Rows []json.RawMessage `json:"rows,omitempty"`
	Gone [][2]string       `json:"gone,omitempty"` // namespace and name
}

func newFleet() *fleet {
	return &fleet{epoch: rand.Text()[:8], log: maxLog, rows: map[model.Key]entry{}, changed: make(chan struct{})}
}

// set replaces the row of a Cluster; nil: it has none any more. A row that is as it was is no change.
func (f *fleet) set(key model.Key, row []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, known := f.rows[key]
	if !known && row == nil || known && row != nil && bytes.Equal(before.row, row) {
		return
	}
	f.seq++
	if row == nil {
		delete(f.rows, key)
	} else {
		f.rows[key] = entry{row: row, seq: f.seq}
	}
	f.changes = append(f.changes, change{key, f.seq})
	if len(f.changes) >= 2*f.log { // in one go, so that a change costs no copy of all
		f.changes = slices.Clone(f.changes[len(f.changes)-f.log:])
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// next is closed with the next change.
func (f *fleet) next() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// now is the cursor of what is there.
func (f *fleet) now() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cursor(f.seq)
}

func (f *fleet) cursor(seq uint64) string { return fmt.Sprintf("%s.%d", f.epoch, seq) }

// since is the oldest that has changed after a cursor, no more than maxDelta rows, and the cursor after it. It is not ok if the
// cursor is of another server or too old.
func (f *fleet) since(cursor string) (d delta, after string, ok bool) {
	epoch, number, _ := strings.Cut(cursor, ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || epoch != f.epoch || seq > f.seq || f.forgotten(seq) {
		return delta{}, f.cursor(f.seq), false
	}
	start, _ := slices.BinarySearchFunc(f.changes, seq+1, func(c change, seq uint64) int { return cmp.Compare(c.seq, seq) })
	gone := map[model.Key]bool{}
	for _, c := range f.changes[start:] {
		if len(d.Rows)+len(d.Gone) >= maxDelta {
			break
		}
		seq = c.seq
		switch e, there := f.rows[c.key]; {
		case there && e.seq == c.seq:
			d.Rows = append(d.Rows, e.row)
		case !there && !gone[c.key]:
			gone[c.key] = true
			d.Gone = append(d.Gone, [2]string{c.key.Namespace, c.key.Name})
		}
	}
	return d, f.cursor(seq), true
}

// forgotten says whether changes after a number are not remembered any more.
func (f *fleet) forgotten(seq uint64) bool {
	return len(f.changes) > 0 && f.changes[0].seq > seq+1 || len(f.changes) == 0 && seq < f.seq
}

// all are the rows of all Clusters in the order of their names, and the cursor that belongs to them.
func (f *fleet) all() (rows []json.RawMessage, cursor string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := make([]model.Key, 0, len(f.rows))
	for key := range f.rows {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b model.Key) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	rows = make([]json.RawMessage, 0, len(keys))
	for _, key := range keys {
		rows = append(rows, f.rows[key].row)
	}
	return rows, f.cursor(f.seq)
}
