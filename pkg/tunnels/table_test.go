package tunnels

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/tunnels/history"
	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

func TestTableFollowsTheLog(t *testing.T) {
	torn := setup(3, "edge-3")
	tests := map[string]struct {
		write []string // the table reads the log after each
		want  map[string]string
		bad   uint64
	}{
		"tunnels open and close": {
			write: []string{setup(1, "edge-1") + setup(2, "edge-2"), closed(1, "edge-1")},
			want:  map[string]string{peerAt(2): "edge-2"},
		},
		"one that opens again under its address is there": {
			write: []string{setup(1, "edge-1") + closed(1, "edge-1") + setup(1, "edge-9")},
			want:  map[string]string{peerAt(1): "edge-9"},
		},
		"one that was not seen to open is there when it is used": {
			write: []string{line(eventHandoff, peerAt(1), nowhere, "edge-1", idA, noon)},
			want:  map[string]string{peerAt(1): "edge-1"},
		},
		"one that takes the place of one that was not seen to close": {
			write: []string{setup(1, "edge-1"), setup(1, "edge-2")},
			want:  map[string]string{peerAt(1): "edge-2"},
		},
		"a line comes in two parts": {
			write: []string{setup(1, "edge-1") + torn[:100], torn[100:] + setup(4, "edge-4")},
			want:  map[string]string{peerAt(1): "edge-1", peerAt(3): "edge-3", peerAt(4): "edge-4"},
		},
		"invalid data between lines is skipped": {
			write: []string{setup(1, "edge-1") + "garbage\n\x00\x00\n" + "more garbage\n\n" + setup(2, "edge-2")},
			want:  map[string]string{peerAt(1): "edge-1", peerAt(2): "edge-2"},
			bad:   3,
		},
		"a line that does not end is skipped": {
			write: []string{
				setup(1, "edge-1"),
				strings.Repeat("x", 3*logfile.MaxLine),
				strings.Repeat("y", logfile.MaxLine) + "\n",
				setup(2, "edge-2"),
			},
			want: map[string]string{peerAt(1): "edge-1", peerAt(2): "edge-2"},
			bad:  1,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, t.TempDir())
			for _, text := range tt.write {
				b.write(t, text)
				b.poll(noon)
			}
			b.publish()
			b.has(t, tt.want)
			if got := b.Stats().BadLines; got != tt.bad {
				t.Errorf("%d bad lines, want %d", got, tt.bad)
			}
			if got := b.log.Count("cannot parse a line of the log of tunnels, skipping it"); tt.bad > 0 && got != 1 {
				t.Errorf("bad lines were logged %d times, want once:\n%s", got, b.log.String())
			}
		})
	}
}

func TestTableFollowsAFileThatIsReplacedOrTruncated(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t, dir)
	stop := b.run(t)
	want := map[string]string{peerAt(1): "edge-1", peerAt(2): "edge-2"}
	b.write(t, setup(1, "edge-1"), setup(2, "edge-2"))
	b.has(t, want)

	if err := os.Truncate(b.path, 0); err != nil {
		t.Fatal(err)
	}
	b.write(t, closed(1, "edge-1"))
	delete(want, peerAt(1))
	b.has(t, want)

	if err := os.Rename(b.path, b.path+".elsewhere"); err != nil {
		t.Fatal(err)
	}
	b.write(t, setup(3, "edge-3")) // to the file that was renamed
	want[peerAt(3)] = "edge-3"
	b.has(t, want)
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(t, setup(4, "edge-4"))
	want[peerAt(4)] = "edge-4"
	b.has(t, want)

	// Envoy's open file has no name: Envoy is told to create another.
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	b.write(t, setup(5, "edge-5"))
	want[peerAt(5)] = "edge-5"
	b.has(t, want)
	waitForFile(t, b.path)
	b.write(t, closed(2, "edge-2"))
	delete(want, peerAt(2))
	b.has(t, want)
	stop()

	again := newBed(t, dir)
	again.run(t)
	again.has(t, want)
}

func TestSnapshotAndChanges(t *testing.T) {
	b := newBed(t, t.TempDir())
	if all, version := b.Snapshot(); len(all) != 0 || version != 0 {
		t.Fatalf("before anything is known: %d tunnels, version %d", len(all), version)
	}
	known := make(chan bool, 1)
	go func() {
		_, _, _, ok := b.Changes(t.Context(), 0)
		known <- ok
	}()
	b.write(t, setup(1, "edge-1"))
	b.run(t)
	if <-known {
		t.Error("what was before the first version is not known, but changes are said to be all")
	}
	b.has(t, map[string]string{peerAt(1): "edge-1"})
	_, version := b.Snapshot()

	b.write(t, setup(2, "edge-2"), closed(1, "edge-1"), setup(3, "edge-3"), closed(3, "edge-3"))
	b.has(t, map[string]string{peerAt(2): "edge-2"})
	opened, gone, next, ok := b.Changes(t.Context(), version)
	if !ok || next <= version || len(opened) != 1 || opened[0].Node != "edge-2" {
		t.Errorf("got %+v, version %d after %d, known %t", opened, next, version, ok)
	}
	if !slices.Contains(gone, peerAt(1)+">"+nowhere) {
		t.Errorf("the tunnel that has closed is not in %q", gone)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if opened, gone, same, ok := b.Changes(ctx, next); len(opened)+len(gone) != 0 || same != next || !ok {
		t.Errorf("with an ended context: %v, %v, version %d, known %t", opened, gone, same, ok)
	}
	if _, _, _, ok := b.Changes(t.Context(), next+1); ok {
		t.Error("a version of another table is known")
	}
}

// TestTunnelsOfLanesAreReportedOnlyIfTheyAreDenied: they come and go with each connection of a client, and everything
// that is reported is written to status.
func TestTunnelsOfLanesAreReportedOnlyIfTheyAreDenied(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.write(t, setup(1, "edge-1"), inLane(setup(2, "edge-1")), inLane(setup(3, "edge-2")))
	b.poll(noon)
	b.publish()
	reported := func(want ...string) uint64 {
		t.Helper()
		all, version := b.Snapshot()
		var got []string
		for _, tunnel := range all {
			got = append(got, tunnel.Key)
		}
		for i := range want {
			want[i] += ">" + nowhere
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		return version
	}
	version := reported(peerAt(1))
	b.write(t, inLane(setup(4, "edge-2")), inLane(closed(3, "edge-2")))
	b.poll(noon)
	if reported(peerAt(1)) != version {
		t.Error("lanes make new versions")
	}
	b.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}})
	if next := reported(peerAt(1), peerAt(2)); next == version {
		t.Error("a denied lane makes no new version")
	}
	b.write(t, inLane(closed(2, "edge-1")))
	b.poll(noon)
	reported(peerAt(1))
}

// TestChangesAddUp applies changes to a snapshot at random intervals, and compares the result with the table.
func TestChangesAddUp(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.write(t, setup(0, "edge-0"))
	b.poll(noon)
	b.publish()
	mirror, version := map[string]Tunnel{}, uint64(0)
	lost := 0
	for round := range 100 {
		for i := range 1 + round*round/3 { // the last rounds exceed the history
			text := setup(i*7%300, fmt.Sprintf("edge-%d", round))
			if (i+round)%3 == 0 {
				text = closed(i*7%300, "edge-1")
			}
			if i%5 == 0 {
				text = inLane(text)
			}
			b.write(t, text)
		}
		b.Deny(model.Denied{IDs: []string{idA}[:round%2]})
		b.poll(noon)
		if round%4 != 0 {
			continue
		}
		opened, gone, next, ok := b.Changes(t.Context(), version)
		if !ok {
			lost++
			clear(mirror)
			opened, next = b.Snapshot()
		}
		for _, key := range gone {
			delete(mirror, key)
		}
		for _, tunnel := range opened {
			mirror[tunnel.Key] = tunnel
		}
		version = next
		all, _ := b.Snapshot()
		want := map[string]Tunnel{}
		for _, tunnel := range all {
			want[tunnel.Key] = tunnel
		}
		if diff := cmp.Diff(want, mirror); diff != "" {
			t.Fatalf("round %d: (-want +got)\n%s", round, diff)
		}
	}
	if lost == 0 || lost == 25 {
		t.Errorf("%d of 25 times a snapshot was needed", lost)
	}
	if b.history.Len() > 2*history.Max {
		t.Errorf("%d changes are remembered", b.history.Len())
	}
}

func TestFresh(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t, dir)
	b.run(t)
	b.write(t, setup(1, "edge-1"))
	b.has(t, map[string]string{peerAt(1): "edge-1"})
	_, version := b.Snapshot()
	if err := b.Fresh(); err != nil {
		t.Fatal(err)
	}
	b.has(t, map[string]string{})
	if _, gone, _, ok := b.Changes(t.Context(), version); !ok || len(gone) != 1 {
		t.Errorf("%q are gone, known %t", gone, ok)
	}
	if names := b.files(t); len(names) != 1 || names[0] != "tunnels.log.state" {
		t.Errorf("there are %q, want an empty state", names)
	}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(t, setup(2, "edge-2"))
	b.has(t, map[string]string{peerAt(2): "edge-2"})

	t.Run("before Run", func(t *testing.T) {
		b := newBed(t, t.TempDir())
		b.write(t, setup(1, "edge-1"))
		if err := b.Fresh(); err != nil {
			t.Fatal(err)
		}
		if _, version := b.Snapshot(); version == 0 {
			t.Error("it is not known that there are no tunnels")
		}
		b.run(t)
		b.has(t, map[string]string{})
	})
}
