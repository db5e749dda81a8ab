package tunnels

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	domain   = model.TunnelDomain("tunnels.example.com")
	patience = 10 * time.Second
)

// The ids of three tunnels.
var (
	idA = strings.Repeat("a", 24)
	idB = strings.Repeat("b", 24)
	idC = strings.Repeat("c", 24)
)

// line returns an event as Envoy writes it.
func line(event, peer, local, node, id string, at time.Time) string {
	return lineOf(0, event, peer, local, node, id, at)
}

// lineOf is line for a tunnel of any worker.
func lineOf(worker int, event, peer, local, node, id string, at time.Time) string {
	return fmt.Sprintf(
		`{"event":%q,"fd":35,"id":%q,"local":%q,"node":"CN=%s","owner":"tunnel","peer":%q,"time":%q,"worker":"worker_%d"}`+"\n",
		event,
		domain.TunnelID(id),
		local,
		node,
		peer,
		at.Format("2006-01-02T15:04:05.000Z"),
		worker,
	)
}

// inLane returns an event of line for a tunnel of a lane.
func inLane(line string) string {
	of := func(key string) *regexp.Regexp { return regexp.MustCompile(`("` + key + `":"[^"]*)"`) }
	return of("node").ReplaceAllString(of("id").ReplaceAllString(line, `${1}`+model.LaneMark+`"`), `${1}`+model.LaneMark+`"`)
}

// nowhere is the local address of tunnels that no kernel has. Nothing listens at port 1.
const nowhere = "192.0.2.2:1"

func peerAt(i int) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 40000).String()
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func setup(i int, node string) string { return line(eventSetup, peerAt(i), nowhere, node, idA, noon) }

func closed(i int, node string) string {
	return line(eventClosed, peerAt(i), nowhere, node, idA, noon.Add(time.Hour))
}

// bed is a table and the file that an Envoy would write.
type bed struct {
	*Table
	path string
	log  *logtest.Journal

	mu     sync.Mutex
	out    *os.File // the file that Envoy has open
	opened int      // number of requests to reopen it
}

// newBed returns a table in a folder. It does not run. Its Envoy has the file open and reopens it on request.
func newBed(t testing.TB, dir string) *bed {
	t.Helper()
	b := &bed{path: filepath.Join(dir, "tunnels.log"), log: &logtest.Journal{}}
	b.Table = New(Config{
		Domain: domain, Log: b.path, Denials: filepath.Join(dir, "denials.json"), Reopen: b.open,
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	})
	b.checkEvery, b.reopenEvery = 200*time.Millisecond, 100*time.Millisecond
	if err := b.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.out.Close() })
	return b
}

func (b *bed) open(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.out != nil {
		_ = b.out.Close()
		b.opened++
	}
	var err error
	b.out, err = os.OpenFile(b.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return err
}

func (b *bed) write(t testing.TB, text ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.out.WriteString(strings.Join(text, "")); err != nil {
		t.Fatal(err)
	}
}

// run runs the table, and returns a function that stops it and waits for its end.
func (b *bed) run(t testing.TB) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("running: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// nodes returns the nodes of all tunnels by peer.
func (b *bed) nodes() map[string]string {
	all, _ := b.Snapshot()
	nodes := map[string]string{}
	for _, tunnel := range all {
		peer, _, _ := strings.Cut(tunnel.Key, ">")
		nodes[peer] = tunnel.Node
	}
	return nodes
}

// has waits until the table has exactly these tunnels.
func (b *bed) has(t testing.TB, want map[string]string) {
	t.Helper()
	eventually.True(t, patience, "the table is right", func() error {
		if _, version := b.Snapshot(); version == 0 {
			return fmt.Errorf("nothing is known yet")
		}
		if diff := cmp.Diff(want, b.nodes()); diff != "" {
			return fmt.Errorf("(-want +got)\n%s", diff)
		}
		return nil
	})
}

func (b *bed) files(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(b.path))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	return slices.Sorted(maps.Keys(names))
}
