package tunnels

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// stateFile is the content of <Log>.state.
type stateFile struct {
	Tunnels []tunnel                `json:"tunnels"`
	Nodes   []connection            `json:"nodes,omitempty"` // connections of nodes
	Owned   map[string]ledger.Owned `json:"owned,omitempty"` // connections that do not belong to a node, by key
	Gap     string                  `json:"gap,omitempty"`   // why records may be missing
	// Unrecorded is the argument of the last Table.Unrecorded. It outlives the agent, as Envoy's configuration does.
	Unrecorded string `json:"unrecorded,omitempty"`
}

func (t *Table) statePath() string { return t.config.Log + ".state" }

// temporaryPath is a fixed name: one agent at a time writes it, and a crash leaves at most one file.
func (t *Table) temporaryPath() string { return t.statePath() + ".tmp" }

// load loads the saved state. A missing or unreadable state is a gap, because Fresh writes a state before Envoy
// starts.
func (t *Table) load(changes *batch) {
	state, err := t.loadState()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.logOnce(slog.LevelError, "cannot load previous tunnels", err)
	}
	for _, tunnel := range state.Tunnels {
		changes.open(tunnel)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unrecorded = state.Unrecorded
	for _, c := range state.Nodes {
		if ofNode(c.Owner) {
			t.connection(event{name: eventStart, owner: c.Owner, connection: c.Connection, tunnel: c.tunnel})
		}
	}
	t.ledger.Restore(state.Owned)
	switch {
	case err != nil:
		t.lose("the state of the record was lost, or Envoy ran before this gateway-agent")
	case state.Gap != "":
		t.lose(state.Gap)
	}
}

func (t *Table) loadState() (state stateFile, err error) {
	data, err := os.ReadFile(t.statePath())
	if err != nil {
		return stateFile{}, fmt.Errorf("reading state of tunnels: %w", err)
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return stateFile{}, fmt.Errorf("reading state of tunnels: %w", err)
	}
	return state, nil
}

// saveState saves all tunnels atomically: after a crash or a power cut a reader finds either the new or the previous
// state.
func (t *Table) saveState() error {
	t.mu.Lock()
	state := stateFile{
		Tunnels:    make([]tunnel, 0, len(t.live)),
		Owned:      t.ledger.Owned(),
		Gap:        t.ledger.Gap(),
		Unrecorded: t.unrecorded,
	}
	for _, e := range t.live {
		state.Tunnels = append(state.Tunnels, e.tunnel)
	}
	for _, e := range t.conns.all {
		state.Nodes = append(state.Nodes, connection{e.tunnel, e.owner, e.connection})
	}
	t.mu.Unlock()
	return t.writeState(state)
}

// saveGap saves that there is a gap, if that is not saved yet, so that the next agent reads it.
func (t *Table) saveGap() error {
	if !t.gapUnsaved.Swap(false) {
		return nil
	}
	err := t.saveState()
	if err != nil {
		t.gapUnsaved.Store(true)
	}
	return err
}

func (t *Table) writeState(state stateFile) error {
	data, err := json.Marshal(state)
	if err == nil {
		err = disk.ReplaceBy(t.temporaryPath(), t.statePath(), data)
	}
	if err != nil {
		return fmt.Errorf("saving state of tunnels: %w", err)
	}
	return nil
}

// removeFiles removes the log and the state from the disk.
func (t *Table) removeFiles() error {
	var errs []error
	for _, path := range append(t.log.Paths(), t.statePath(), t.temporaryPath()) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing state of tunnels: %w", err))
		}
	}
	return errors.Join(errs...)
}
