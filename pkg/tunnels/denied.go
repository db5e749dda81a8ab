package tunnels

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
)

// keepInterval is the minimum time between two writes of what is denied.
const keepInterval = time.Second

// Deny replaces the set of denied nodes and ids. Run closes their tunnels and connections, now and whenever one
// appears; nothing is closed unless Run runs.
func (t *Table) Deny(d model.Denied) {
	t.mu.Lock()
	before := t.denied
	set, added := newDenied(d, before, time.Now())
	t.denied, t.unread = set, false
	t.ledger.Denied(added)
	var lanes []string // that are reported from now on, or no longer
	for key, e := range t.live {
		if e.Lane && before.has(e.Tunnel) != t.denied.has(e.Tunnel) {
			lanes = append(lanes, key)
		}
	}
	if t.history.Version > 0 {
		t.history.Add(lanes)
	}
	t.keepCuts()
	t.mu.Unlock()
	notify(t.notifyEnforce)
	notify(t.notifyKeep)
}

// Denied reports whether the tunnels of an edge are closed as they appear.
func (t *Table) Denied(edge model.EdgeRef) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.denied.has(Tunnel{Node: edge.Node, ID: edge.ID})
}

// denied holds the sets of model.Denied, with the time from which each member was denied.
type denied struct {
	edges map[model.EdgeRef]time.Time
	ids   map[string]time.Time
}

// newDenied returns the sets of d. Members of before keep their times, and added says that there are others.
func newDenied(d model.Denied, before denied, now time.Time) (set denied, added bool) {
	edges, moreEdges := timesOf(d.Edges, before.edges, now)
	ids, moreIDs := timesOf(d.IDs, before.ids, now)
	return denied{edges, ids}, moreEdges || moreIDs
}

func timesOf[K comparable](members []K, before map[K]time.Time, now time.Time) (times map[K]time.Time, added bool) {
	times = make(map[K]time.Time, len(members))
	for _, member := range members {
		at, was := before[member]
		if !was {
			at, added = now, true
		}
		times[member] = at
	}
	return times, added
}

func (d denied) has(t Tunnel) bool { return !d.since(t).IsZero() }

// since returns the time from which a tunnel is denied; zero: it is not denied.
func (d denied) since(t Tunnel) time.Time {
	byEdge, byID := d.edges[model.EdgeRef{Node: t.Node, ID: t.ID}], d.ids[t.ID]
	if byEdge.IsZero() || !byID.IsZero() && byID.Before(byEdge) {
		return byID
	}
	return byEdge
}

// keptDenials is the content of Config.Denials.
type keptDenials struct {
	Edges []keptEdge `json:"edges"`
	IDs   []string   `json:"ids"`
}

type keptEdge struct {
	Node string `json:"node"`
	ID   string `json:"id"`
}

// encode returns the content of Config.Denials, which is the same for equal sets.
func (d denied) encode() ([]byte, error) {
	var kept keptDenials
	for edge := range d.edges {
		kept.Edges = append(kept.Edges, keptEdge(edge))
	}
	for id := range d.ids {
		kept.IDs = append(kept.IDs, id)
	}
	slices.SortFunc(kept.Edges, func(a, b keptEdge) int { return model.EdgeRef(a).Compare(model.EdgeRef(b)) })
	slices.Sort(kept.IDs)
	return json.Marshal(kept)
}

// decodeDenied is the inverse of encode. It rejects everything else.
func decodeDenied(data []byte, now time.Time) (denied, error) {
	var kept keptDenials
	if err := json.Unmarshal(data, &kept); err != nil {
		return denied{}, err
	}
	list := model.Denied{IDs: kept.IDs}
	for _, edge := range kept.Edges {
		list.Edges = append(list.Edges, model.EdgeRef(edge))
	}
	d, _ := newDenied(list, denied{}, now)
	if again, err := d.encode(); err != nil || !bytes.Equal(again, data) {
		return denied{}, errors.Join(errors.New("it has not the form of denials"), err)
	}
	return d, nil
}

// loadDenials denies what the previous agent has kept, until Deny is called. No file means that nothing was denied yet.
func (t *Table) loadDenials() {
	if t.config.Denials == "" {
		return
	}
	data, err := os.ReadFile(t.config.Denials)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		t.denied, err = decodeDenied(data, time.Now())
		t.ledger.Denied(len(t.denied.edges)+len(t.denied.ids) > 0) // perhaps shortly before the previous agent ended
	}
	if err != nil {
		t.unread = true
		t.logOnce(
			slog.LevelError, "cannot load denials, rejecting connections of networks until an xds-server answers",
			fmt.Errorf("reading %s: %w", t.config.Denials, err),
		)
		return
	}
	t.saved = data
}

// keepDenials writes what is denied when Deny has changed it, until ctx ends.
func (t *Table) keepDenials(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-t.notifyKeep:
			t.saveDenials()
			_ = retry.Sleep(ctx, keepInterval)
		}
	}
	select {
	case <-t.notifyKeep:
		t.saveDenials()
	default: // if the file could not be read, and Deny was not called, it stays as it is
	}
}

// saveDenials writes what is denied unless the file has it. After an error it is notified again.
func (t *Table) saveDenials() {
	t.mu.Lock()
	set := t.denied // Deny replaces it, and nothing changes it
	t.mu.Unlock()
	data, err := set.encode()
	if err == nil && !bytes.Equal(data, t.saved) {
		t.saved = nil
		if err = disk.ReplaceBy(t.config.Denials+".tmp", t.config.Denials, data); err == nil { // logOnce compares errors
			t.saved = data
		}
	}
	if err != nil {
		t.logOnce(slog.LevelError, "cannot save denials, retrying", err)
		notify(t.notifyKeep)
	}
}
