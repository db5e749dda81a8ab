package tunnels

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// TestADenialKeepsItsTime: each report repeats all denials, and the first one counts.
func TestADenialKeepsItsTime(t *testing.T) {
	edge, other := model.EdgeRef{Node: "edge-a", ID: idA}, model.EdgeRef{Node: "edge-b", ID: idB}
	first, _ := newDenied(model.Denied{Edges: []model.EdgeRef{edge}}, denied{}, noon)
	second, added := newDenied(
		model.Denied{Edges: []model.EdgeRef{edge, other}, IDs: []string{idA, idC}}, first, noon.Add(time.Second),
	)
	third, more := newDenied(model.Denied{IDs: []string{idA}}, second, noon.Add(time.Minute))
	if !added || more {
		t.Errorf("the second set adds something: %t, and the third one: %t", added, more)
	}
	for what, tc := range map[string]struct {
		in   denied
		of   model.EdgeRef
		want time.Time
	}{
		"it is denied":                    {first, edge, noon},
		"it is not":                       {first, other, time.Time{}},
		"it is denied again":              {second, edge, noon},
		"it is denied later":              {second, other, noon.Add(time.Second)},
		"its id is denied":                {second, model.EdgeRef{Node: "edge-c", ID: idC}, noon.Add(time.Second)},
		"only its id is still denied":     {third, edge, noon.Add(time.Second)},
		"it is no longer denied":          {third, other, time.Time{}},
		"an edge of an id without denial": {third, model.EdgeRef{Node: "edge-c", ID: idC}, time.Time{}},
	} {
		tunnel := Tunnel{Node: tc.of.Node, ID: tc.of.ID}
		if got := tc.in.since(tunnel); !got.Equal(tc.want) || tc.in.has(tunnel) == tc.want.IsZero() {
			t.Errorf("%s: denied since %s (%t), want %s", what, got, tc.in.has(tunnel), tc.want)
		}
	}
}

// admits reports whether a connection of a node that is no tunnel is accepted. No kernel has it.
func (b *bed) admits(node model.EdgeRef) bool {
	subject := model.Subject{Role: model.RoleEgress, Node: node.Node, ID: node.ID}
	return b.claims(subject, wire{remote: netip.MustParseAddrPort(peerAt(1)), local: netip.MustParseAddrPort(nowhere)})
}

// kept waits until the file of denials has this content.
func (b *bed) kept(t *testing.T, want string) fs.FileInfo {
	t.Helper()
	eventually.True(t, patience, "the denials are kept", func() error {
		if data, err := os.ReadFile(b.config.Denials); err != nil || string(data) != want {
			return fmt.Errorf("the file has %q, %w", data, err)
		}
		return nil
	})
	info, err := os.Stat(b.config.Denials)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("it has the mode %v, %v", info.Mode(), err)
	}
	return info
}

// TestDenialsOutliveTheAgent has three agents, of which the second one hears nothing from an xds-server.
func TestDenialsOutliveTheAgent(t *testing.T) {
	dir, edge, other := t.TempDir(), model.EdgeRef{Node: "kas-1", ID: idA}, model.EdgeRef{Node: "kas-2", ID: idA}
	ended, spared := model.EdgeRef{Node: "edge-1", ID: idB}, model.EdgeRef{Node: "edge-1", ID: idC}
	const both = `{"edges":[{"node":"kas-1","id":"aaaaaaaaaaaaaaaaaaaaaaaa"}],"ids":["bbbbbbbbbbbbbbbbbbbbbbbb"]}`
	first := newBed(t, dir)
	if !first.admits(edge) {
		t.Error("it denies something before it has heard anything")
	}
	stop := first.run(t)
	orders := model.Denied{Edges: []model.EdgeRef{edge}, IDs: []string{idB}}
	first.Deny(orders)
	file := first.kept(t, both)
	first.Deny(orders) // as each order repeats it
	stop()
	if again := first.kept(t, both); !os.SameFile(file, again) {
		t.Error("the file was written again, without a change")
	}

	second := newBed(t, dir)
	if err := second.Fresh(); err != nil { // another Envoy starts
		t.Fatal(err)
	}
	stop = second.run(t)
	for ref, denied := range map[model.EdgeRef]bool{edge: true, ended: true, other: false, spared: false} {
		if second.Denied(ref) != denied || second.admits(ref) == denied {
			t.Errorf("the next agent denies %v: %t, want %t", ref, second.Denied(ref), denied)
		}
	}
	stop()
	second.kept(t, both)

	third := newBed(t, dir)
	stop = third.run(t)
	third.Deny(model.Denied{Edges: []model.EdgeRef{other}})
	for ref, denied := range map[model.EdgeRef]bool{edge: false, ended: false, other: true} {
		if third.Denied(ref) != denied || third.admits(ref) == denied {
			t.Errorf("with other orders it denies %v: %t, want %t", ref, third.Denied(ref), denied)
		}
	}
	stop() // at once
	third.kept(t, `{"edges":[{"node":"kas-2","id":"aaaaaaaaaaaaaaaaaaaaaaaa"}],"ids":null}`)
}

// TestDenialsThatCannotBeKeptAreReportedOnce, while each second they are written again in vain.
func TestDenialsThatCannotBeKeptAreReportedOnce(t *testing.T) {
	b := newBed(t, t.TempDir())
	if err := os.MkdirAll(filepath.Join(b.config.Denials, "a folder is in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.Deny(model.Denied{IDs: []string{idA}})
	outside := b.notifyKeep
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*keepInterval/2)
		defer cancel()
		b.notifyKeep = make(chan struct{}, 1)
		notify(b.notifyKeep)
		b.keepDenials(ctx)
	})
	b.notifyKeep = outside
	if n := b.log.Count("cannot save denials, retrying"); n != 1 {
		t.Errorf("it was logged %d times:\n%s", n, b.log)
	}
	if err := os.RemoveAll(b.config.Denials); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.kept(t, `{"edges":null,"ids":["aaaaaaaaaaaaaaaaaaaaaaaa"]}`)
}

// TestTheNextAgentClosesConnectionsOfDeniedNodes, also without an xds-server.
func TestTheNextAgentClosesConnectionsOfDeniedNodes(t *testing.T) {
	needsRight(t)
	e, dir := newEcho(t, "tcp", "127.0.0.1:0"), t.TempDir()
	first := newBed(t, dir)
	stop := first.run(t)
	first.Deny(model.Denied{IDs: []string{idA}})
	first.kept(t, `{"edges":null,"ids":["aaaaaaaaaaaaaaaaaaaaaaaa"]}`)
	stop()
	next := newBed(t, dir)
	next.run(t)
	w := e.dial(t, e.Addr().String())
	next.write(t, used(ownerEgress, w, 1, "kas-1", idA))
	isCut(t, w)
}

// TestNoStreamsAreAdmittedWhileDenialsAreUnknown, because nothing else in front of them denies. Tunnels are admitted:
// Envoy has a deny list of its own for them.
func TestNoStreamsAreAdmittedWhileDenialsAreUnknown(t *testing.T) {
	ref := model.EdgeRef{Node: "kas-1", ID: idA}
	for name, damaged := range map[string]string{
		"empty": "", "no JSON": "\x00\x00", "cut off": `{"edges":[{"node":"kas-1","id":"aaaa`, "something else": "{}",
		"of another form": `{"edges":null,"ids":["a"],"more":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := newBed(t, dir).config.Denials
			if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first one leaves the file as it is
				b := newBed(t, dir)
				stop := b.run(t)
				if b.admits(ref) || b.Denied(ref) || b.log.Count("cannot load denials") != 1 {
					t.Errorf("streams are admitted: %t, tunnels denied: %t", b.admits(ref), b.Denied(ref))
				}
				stop()
			}
			b := newBed(t, dir)
			b.run(t)
			b.Deny(model.Denied{})
			if !b.admits(ref) {
				t.Error("streams are not admitted after an answer of an xds-server")
			}
			b.kept(t, `{"edges":null,"ids":null}`)
		})
	}
}

// TestARestartDeniesNothing: the file of what is denied is no reason to close connections in doubt if it has nothing.
func TestARestartDeniesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		in     model.Denied
		closes int
	}{
		"nothing is denied": {},
		"an edge is denied": {in: model.Denied{Edges: []model.EdgeRef{{Node: "edge-a", ID: idA}}}, closes: 1},
	} {
		dir := t.TempDir()
		b := newBed(t, dir)
		b.Deny(tc.in)
		b.saveDenials()
		b.closeFiles()
		again := newBed(t, dir)
		again.ledger.Lost("a test says so")
		doubtful := []sockets.Socket{{
			Remote: netip.MustParseAddrPort(peerAt(1)), Local: netip.MustParseAddrPort("192.0.2.1:443"),
		}}
		none := func(sockets.Socket) bool { return false }
		again.ledger.Compare(doubtful, none)
		if closed := again.ledger.Compare(doubtful, none); len(closed) != tc.closes {
			t.Errorf("%s: %d connections are closed, want %d", name, len(closed), tc.closes)
		}
	}
}
