package tunnels

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

func waitForFile(t testing.TB, path string) {
	t.Helper()
	eventually.True(t, patience, path+" is there", func() error { _, err := os.Stat(path); return err })
}

func TestLogIsReplacedWhenItIsLarge(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t, dir)
	b.maxLog = 16 << 10
	stop := b.run(t)
	want := map[string]string{}
	for i := range 400 { // about 150 KB; nothing of it may be lost
		node := fmt.Sprintf("edge-%d", i)
		b.write(t, setup(i, node))
		if i%2 == 0 {
			b.write(t, closed(i, node))
		} else {
			want[peerAt(i)] = node
		}
		if i%50 == 49 {
			b.has(t, want)
			eventually.True(t, patience, "the large log is removed", func() error {
				if _, err := os.Stat(b.path + ".old"); !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("the old log is still there")
				}
				info, err := os.Stat(b.path)
				if err == nil && info.Size() > b.maxLog {
					err = fmt.Errorf("it has %d bytes", info.Size())
				}
				return err
			})
		}
	}
	stop()
	if b.opened == 0 {
		t.Error("the log was never opened anew")
	}
	again := newBed(t, dir)
	again.run(t)
	again.has(t, want)
	if got := again.files(t); !slices.Equal(got, []string{"tunnels.log", "tunnels.log.state"}) {
		t.Errorf("there are %q", got)
	}
}

// TestStartAfterACrash starts with the files that are on disk if the agent is killed between two steps of the
// replacement.
func TestStartAfterACrash(t *testing.T) {
	// The expected result: 1 opened before the replacement, 2 opened and closed around it, 3 opened after it.
	const (
		state = "tunnels.log.state"
		old   = "tunnels.log.old"
		log   = "tunnels.log"
	)
	before := setup(0, "edge-0") + closed(0, "edge-0") + setup(1, "edge-1") + setup(2, "edge-2")
	after := closed(2, "edge-2") + setup(3, "edge-3")
	saved := func(t *testing.T, text string) string {
		t.Helper()
		b := newBed(t, t.TempDir())
		b.write(t, text)
		b.poll(noon)
		if err := b.saveState(); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(b.statePath())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	tests := map[string]struct {
		files map[string]string
		later string // what Envoy writes to its open file before it reopens the log
		want  []int
	}{
		"nothing was replaced yet": {files: map[string]string{log: before + after}, want: []int{1, 3}},
		"the log is renamed, and Envoy continues to write to it": {
			files: map[string]string{old: before}, later: after, want: []int{1, 3},
		},
		"Envoy has opened the new one": {files: map[string]string{old: before, log: after}, want: []int{1, 3}},
		"Envoy has opened the new one and written nothing yet": {
			files: map[string]string{old: before + after, log: ""}, want: []int{1, 3},
		},
		"a state of before is there too": {
			files: map[string]string{
				state: saved(t, setup(7, "edge-7")+setup(0, "edge-0")),
				old:   before,
				log:   after,
			}, want: []int{1, 3, 7},
		},
		"a new state was begun": {
			files: map[string]string{state + ".tmp": `{"tunnels":[{"key":`, old: before, log: after}, want: []int{1, 3},
		},
		"the state is written, and the old log is still there": {
			files: map[string]string{state: saved(t, before), old: before, log: after}, want: []int{1, 3},
		},
		"the state has some of the new log already": {
			files: map[string]string{state: saved(t, before+after), old: before, log: after}, want: []int{1, 3},
		},
		"all is done": {files: map[string]string{state: saved(t, before), log: after}, want: []int{1, 3}},
		"the old log ends in a line that was torn": {
			files: map[string]string{old: before + setup(9, "edge-9")[:50], log: after}, want: []int{1, 3},
		},
		"the state is invalid": {files: map[string]string{state: "{", log: before + after}, want: []int{1, 3}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b := crashed(t, dir, tt.later != "")
			b.write(t, tt.later)
			stop := b.run(t)
			want := map[string]string{}
			for _, i := range tt.want {
				want[peerAt(i)] = fmt.Sprintf("edge-%d", i)
			}
			b.has(t, want)
			eventually.True(t, patience, "the files are in order", func() error {
				for _, name := range b.files(t) {
					if name == old {
						return fmt.Errorf("the old log is still there")
					}
				}
				return nil
			})
			b.write(t, setup(8, "edge-8"))
			want[peerAt(8)] = "edge-8"
			b.has(t, want)
			stop()

			again := newBed(t, dir)
			again.run(t)
			again.has(t, want)
		})
	}
}

// crashed returns a bed whose Envoy has the log open, or, if moved is set, the one that was renamed.
func crashed(t *testing.T, dir string, moved bool) *bed {
	t.Helper()
	if !moved {
		return newBed(t, dir)
	}
	path := filepath.Join(dir, "tunnels.log")
	if err := os.Rename(path+".old", path); err != nil {
		t.Fatal(err)
	}
	b := newBed(t, dir)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAStartThatFailsCountsEachLineOnce: the log beside the one that was moved cannot be read for a while.
func TestAStartThatFailsCountsEachLineOnce(t *testing.T) {
	b, counted := newBed(t, t.TempDir()), 0
	b.config.Request = func(Placed) { counted++ }
	request := used(ownerEgress, wire{
		remote: netip.MustParseAddrPort(peerAt(1)), local: netip.MustParseAddrPort(nowhere),
	}, 1, "kas-1", idA)
	lines := 2 * logfile.MaxRead / len(request)
	if err := os.WriteFile(b.path+".old", []byte(strings.Repeat(request, lines)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(b.path), os.Symlink(b.path, b.path)); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		b.poll(noon)
		if counted != lines {
			t.Errorf("of %d requests %d are counted", lines, counted)
		}
	}
	for range 3 {
		if check(); b.Table.log.loaded {
			t.Error("the start is complete without the log")
		}
	}
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if check(); !b.Table.log.loaded {
		t.Error("the start is not complete")
	}
}

func TestTheLogIsKeptWhileTheStateCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t, dir)
	b.maxLog = 1 << 9
	if err := os.MkdirAll(b.temporaryPath(), 0o700); err != nil { // in place of the file
		t.Fatal(err)
	}
	b.write(t, setup(1, "edge-1"), setup(2, "edge-2"), setup(3, "edge-3"))
	b.poll(noon)
	b.poll(noon)
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(t, setup(4, "edge-4"))
	b.poll(noon)
	if got := b.log.Count("cannot rotate log of tunnels"); got != 1 {
		t.Errorf("it was logged %d times:\n%s", got, b.log)
	}
	want := map[string]string{peerAt(1): "edge-1", peerAt(2): "edge-2", peerAt(3): "edge-3", peerAt(4): "edge-4"}
	again := newBed(t, dir)
	again.poll(noon)
	again.publish()
	again.has(t, want)

	if err := os.Remove(b.temporaryPath()); err != nil {
		t.Fatal(err)
	}
	b.poll(noon.Add(b.reopenEvery))
	if got := b.files(t); !slices.Equal(got, []string{"tunnels.log", "tunnels.log.state"}) {
		t.Errorf("there are %q", got)
	}
}
