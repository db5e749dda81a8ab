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
	// maxLog is how many changes are stored. A reader that is further behind reads the whole fleet again.
	maxLog = 32_768
	// maxDelta is how many rows one event has, so that no event exceeds about 200 kB.
	maxDelta = 500
)

// fleet holds the newest row of each Cluster, and the order of changes. A reader has only a cursor, so a slow one costs
// no memory: it receives the newest row of everything that has changed since. It is safe for concurrent use.
type fleet struct {
	epoch string // identifies this fleet: cursors from before a restart or of another server are invalid here
	log   int    // how many changes are stored

	mu      sync.Mutex
	seq     uint64
	rows    map[model.Key]entry
	changes []change // the newest last
	changed chan struct{}
}

// entry is an encoded row with the number of its last change.
type entry struct {
	row []byte
	seq uint64
}

// change records that the row of a Cluster was added, changed or removed.
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

// set replaces the row of a Cluster; nil removes it. An equal row is not a change.
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
	if len(f.changes) >= 2*f.log { // in batches, so that not each change copies all
		f.changes = slices.Clone(f.changes[len(f.changes)-f.log:])
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// next returns a channel that is closed with the next change.
func (f *fleet) next() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// now returns the cursor of the current state.
func (f *fleet) now() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cursor(f.seq)
}

func (f *fleet) cursor(seq uint64) string { return fmt.Sprintf("%s.%d", f.epoch, seq) }

// since returns the oldest changes after a cursor, at most maxDelta rows, and the cursor after them. ok is false if the
// cursor is of another server or too old.
func (f *fleet) since(cursor string) (d delta, after string, ok bool) {
	epoch, number, _ := strings.Cut(cursor, ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || epoch != f.epoch || seq > f.seq || f.forgotten(seq) {
		return delta{}, f.cursor(f.seq), false
	}
	start, _ := slices.BinarySearchFunc(
		f.changes, seq+1, func(c change, seq uint64) int { return cmp.Compare(c.seq, seq) },
	)
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

// forgotten reports whether changes after a number are no longer stored.
func (f *fleet) forgotten(seq uint64) bool {
	return len(f.changes) > 0 && f.changes[0].seq > seq+1 || len(f.changes) == 0 && seq < f.seq
}

// all returns the rows of all Clusters sorted by name, and the cursor that belongs to them.
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
