package tunnels

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/fairlead/fairlead/internal/disk"
)

// stateFile is what <Log>.state holds.
type stateFile struct {
	Tunnels []tunnel `json:"tunnels"`
}

func (t *Table) statePath() string { return t.config.Log + ".state" }

// temporaryPath has one name: one agent at a time writes it, and a crash leaves one at most.
func (t *Table) temporaryPath() string { return t.statePath() + ".tmp" }

// loadState reads what was saved: nothing if nothing was.
func (t *Table) loadState() ([]tunnel, error) {
	data, err := os.ReadFile(t.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading state of tunnels: %w", err)
	}
	var state stateFile
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, fmt.Errorf("reading state of tunnels: %w", err)
	}
	return state.Tunnels, nil
}

// saveState writes all tunnels that there are, so that a reader finds these or those of before, after a power cut too.
func (t *Table) saveState() error {
	t.mu.Lock()
	state := stateFile{Tunnels: make([]tunnel, 0, len(t.live))}
	for _, e := range t.live {
		state.Tunnels = append(state.Tunnels, e.tunnel)
	}
	t.mu.Unlock()
	data, err := json.Marshal(state)
	if err == nil {
		err = disk.ReplaceBy(t.temporaryPath(), t.statePath(), data)
	}
	if err != nil {
		return fmt.Errorf("saving state of tunnels: %w", err)
	}
	return nil
}

// removeFiles removes everything that is known of tunnels from the disk.
func (t *Table) removeFiles() error {
	var errs []error
	for _, path := range []string{t.statePath(), t.temporaryPath(), t.log.old(), t.log.path} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing what is known of tunnels: %w", err))
		}
	}
	return errors.Join(errs...)
}
