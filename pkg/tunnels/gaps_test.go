package tunnels

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/tunnels/logfile"
)

// passed returns a record of a connection that Envoy forwards.
func passed(owner, event, peer, local string, connection int) string {
	return fmt.Sprintf(
		`{"connection":%d,"event":%q,"local":%q,"owner":%q,"peer":%q,"time":"2026-01-01T12:00:00.000Z"}`+"\n",
		connection,
		event,
		local,
		owner,
		peer,
	)
}

// TestALateEndOfATunnelDoesNotEndANewerOne has an edge that resets a connection and dials again from the same port.
func TestALateEndOfATunnelDoesNotEndANewerOne(t *testing.T) {
	b := newBed(t, t.TempDir())
	with := func(s, fd string) string { return strings.Replace(s, `"fd":35`, `"fd":`+fd, 1) }
	b.write(t, with(setup(0, "edge-1"), "35"))
	b.poll(time.Now())
	b.write(t, with(setup(0, "edge-1"), "36"), with(closed(0, "edge-1"), "35")) // in one batch
	b.poll(time.Now())
	if len(b.live) != 1 {
		t.Fatal("the newer tunnel is not in the table")
	}
	b.write(t, with(closed(0, "edge-1"), "35"), closed(0, "edge-2")) // and in separate batches
	b.poll(time.Now())
	if len(b.live) != 1 {
		t.Fatal("the newer tunnel is not in the table any more")
	}
	b.write(t, with(closed(0, "edge-1"), "36"))
	b.poll(time.Now())
	if len(b.live) != 0 {
		t.Error("it does not end")
	}
}

// TestLostEventsMakeTheRecordIncomplete also restarts the agent at each step: the next one reads the gap from the
// state.
func TestLostEventsMakeTheRecordIncomplete(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(t *testing.T, b *bed)
		want bool
	}{
		"nothing": {func(*testing.T, *bed) {}, false},
		"records": {func(t *testing.T, b *bed) {
			b.write(t, setup(1, "edge-1"), passed("relay", eventStart, peerAt(2), nowhere, 1), closed(1, "edge-1"))
		}, false},
		"a line that is no record": {func(t *testing.T, b *bed) { b.write(t, "{}\n") }, true},
		"a line that is too long": {
			func(t *testing.T, b *bed) { b.write(t, strings.Repeat("x", logfile.MaxLine+1)+"\n") }, true,
		},
		"a log that is truncated": {func(t *testing.T, b *bed) {
			b.write(t, setup(1, "edge-1"))
			b.poll(time.Now())
			if err := os.Truncate(b.path, 0); err != nil {
				t.Fatal(err)
			}
		}, true},
		"a state that is lost": {func(t *testing.T, b *bed) {
			if err := os.Remove(b.statePath()); err != nil {
				t.Fatal(err)
			}
			b.closeFiles() // the agent restarts
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := newBed(t, dir)
			if err := b.Fresh(); err != nil {
				t.Fatal(err)
			}
			if err := b.open(t.Context()); err != nil { // an Envoy that starts creates its log
				t.Fatal(err)
			}
			b.poll(time.Now())
			tt.do(t, b)
			b.poll(time.Now())
			if got := b.ledger.Gap() != ""; got != tt.want {
				t.Errorf("a gap is %v: %q", got, b.ledger.Gap())
			}
			b.closeFiles()
			again := newBed(t, dir)
			again.poll(time.Now())
			if got := again.ledger.Gap() != ""; got != tt.want {
				t.Errorf("for the next agent a gap is %v: %q", got, again.ledger.Gap())
			}
			if name == "records" && len(again.ledger.Owned()) != 1 {
				t.Errorf("the next agent knows %v", again.ledger.Owned())
			}
		})
	}
}

// TestOwnersOutliveTheLog replaces the log: its records are in the state.
func TestOwnersOutliveTheLog(t *testing.T) {
	b := newBed(t, t.TempDir())
	if err := b.Fresh(); err != nil {
		t.Fatal(err)
	}
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(t, passed("control", eventStart, peerAt(1), nowhere, 5))
	b.maxLog, b.reopenEvery = 1, 0
	b.poll(time.Now()) // moves it away
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.poll(time.Now())
	b.poll(time.Now())
	if files := fmt.Sprint(b.files(t)); strings.Contains(files, ".old") {
		t.Fatalf("files: %s", files)
	}
	b.closeFiles()
	again := newBed(t, t.TempDir())
	again.config.Log, again.Table.log.File = b.path, logfile.New(b.path, again.badLine)
	again.poll(time.Now())
	if o := again.ledger.Owned()[peerAt(1)+">"+nowhere]; o.Owner != "control" || o.Connection != "5" {
		t.Errorf("owned: %v", again.ledger.Owned())
	}
}
