package web_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/diagnose/web"
	"github.com/fairlead/fairlead/pkg/model"
)

// events reads server-sent events.
type events struct {
	t    *testing.T
	body *bufio.Reader
	id   string
}

func (e *events) next() (kind string, data map[string]any) {
	e.t.Helper()
	for {
		line, err := e.body.ReadString('\n')
		if err != nil {
			e.t.Fatalf("reading events: %v", err)
		}
		field, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch field {
		case "id":
			e.id = value
		case "event":
			kind = value
		case "data":
			if err := json.Unmarshal([]byte(value), &data); err != nil {
				e.t.Fatal(err)
			}
			if kind != "beat" {
				return kind, data
			}
		}
	}
}

// follow opens a stream at a page that is served.
func follow(t *testing.T, url, last string) *events {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != 200 {
		t.Fatalf("%s: %s", url, response.Status)
	}
	return &events{t: t, body: bufio.NewReaderSize(response.Body, 1<<20)}
}

// document returns the page's document of the whole fleet.
func document(t *testing.T, p *web.Page) (d struct {
	Cursor  string
	Now     int64
	Columns []string
	Rows    [][]any
},
) {
	t.Helper()
	got := request(t, p, "GET", "/api/fleet", map[string]string{"Accept-Encoding": "gzip"})
	z, err := gzip.NewReader(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheDocumentOfAQuietFleetHasTheTime(t *testing.T) {
	now := time.Now()
	p := newPage(t, newFleet(1), web.Config{Now: func() time.Time { return now }})
	first := document(t, p)
	now = now.Add(time.Hour)
	if again := document(t, p); again.Now != now.Unix() || again.Cursor != first.Cursor {
		t.Errorf("after an hour it has the time %d and cursor %s, want %d and %s", again.Now, again.Cursor, now.Unix(),
			first.Cursor)
	}
}

func TestAReconnectingReaderReceivesOnlyTheChanges(t *testing.T) {
	fleet := newFleet(1200)
	p := newPage(t, fleet, web.Config{Timing: web.Timing{Gather: time.Millisecond, Request: 300 * time.Millisecond}})
	url := serve(t, p) + "api/fleet/events"
	d := document(t, p)
	if len(d.Rows) != 1200 || len(d.Columns) != len(d.Rows[0]) {
		t.Fatalf("%d rows, %d columns", len(d.Rows), len(d.Columns))
	}
	change := func(i int, do func(*v1alpha1.Tunnel) *v1alpha1.Tunnel) string {
		key := model.Key{Namespace: d.Rows[i][0].(string), Name: d.Rows[i][1].(string)}
		fleet.change(key, do)
		p.Changed(t.Context(), fleet, key)
		return key.Name
	}
	retitle := func(to string) func(*v1alpha1.Tunnel) *v1alpha1.Tunnel {
		return func(t *v1alpha1.Tunnel) *v1alpha1.Tunnel { t.Status.Hostname = to; return t }
	}
	live := follow(t, url+"?since="+d.Cursor, "")
	name := change(3, retitle("one"))
	if kind, data := live.next(); kind != "rows" || len(data["rows"].([]any)) != 1 ||
		fmt.Sprint(data["rows"].([]any)[0].([]any)[1]) != name {
		t.Errorf("after one change: %s %v", kind, data)
	}
	// Disconnected while several change, some twice, and one is removed.
	for i := range 700 {
		change(i, retitle(fmt.Sprint("two", i)))
		change(i, retitle(fmt.Sprint("three", i)))
	}
	change(3, func(*v1alpha1.Tunnel) *v1alpha1.Tunnel { return nil })
	back := follow(t, url+"?since="+d.Cursor, live.id) // the header counts, not the address
	rows, gone := 0, map[string]bool{}                 // a later event may repeat what was removed
	for rows+len(gone) < 700 {
		kind, data := back.next()
		if kind != "rows" {
			t.Fatalf("%s %v", kind, data)
		}
		if part, ok := data["rows"].([]any); ok {
			rows += len(part)
			if !strings.HasPrefix(part[0].([]any)[4].(string), "three") || len(part) > 500 {
				t.Errorf("%d rows, an old one among them: %v", len(part), part[0])
			}
		}
		if part, ok := data["gone"].([]any); ok {
			gone[fmt.Sprint(part[0])] = true
		}
	}
	if rows != 699 || len(gone) != 1 {
		t.Errorf("%d rows and %v gone, want 699 and 1", rows, gone)
	}
	for _, cursor := range []string{"another.5", "", "x", strings.Split(d.Cursor, ".")[0] + ".99999999"} {
		if kind, _ := follow(t, url, cursor).next(); kind != "reset" {
			t.Errorf("cursor %q: %s, want reset", cursor, kind)
		}
	}
	p.SetLog(10)
	for i := range 40 {
		change(10+i, retitle("four"))
	}
	if kind, _ := follow(t, url, d.Cursor).next(); kind != "reset" {
		t.Errorf("a cursor that is too old: %s, want reset", kind)
	}
	// A stream outlives the timeout of other requests.
	eventually.True(t, patience, "the first stream continues", func() error {
		if kind, _ := live.next(); kind != "rows" {
			return errors.New(kind)
		}
		return nil
	})
}

// TestAQuietStreamOfHTTP2Continues reads more than one beat from one response, each later than the limit of a write.
func TestAQuietStreamOfHTTP2Continues(t *testing.T) {
	p := newPage(t, newFleet(1), web.Config{
		Timing: web.Timing{Write: 500 * time.Millisecond, Beat: 700 * time.Millisecond},
	})
	server := httptest.NewUnstartedServer(p.Handler())
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/fleet/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		t.Fatalf("%s over %s", response.Status, response.Proto)
	}
	lines := bufio.NewScanner(response.Body)
	for beats := 0; beats < 2; {
		if !lines.Scan() {
			t.Fatalf("the stream ended after %d beats: %v", beats, lines.Err())
		}
		if lines.Text() == "event: beat" {
			beats++
		}
	}
}

// crowd opens the pages of as many Clusters as are permitted, and then of more, which are rejected.
func crowd(t *testing.T, url string, d [][]any, more int) (leave []context.CancelFunc) {
	t.Helper()
	const most = 16
	for i := range most + more {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		r, err := http.NewRequestWithContext(
			ctx, http.MethodGet, fmt.Sprintf("%sapi/cluster/events?namespace=%s&name=%s", url, d[i][0], d[i][1]), http.NoBody,
		)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		if i < most {
			if response.StatusCode != http.StatusOK {
				t.Fatalf("reader %d: %s", i+1, response.Status)
			}
			continue
		}
		why, err := io.ReadAll(response.Body)
		if again := response.Header.Get("Retry-After"); err != nil || response.StatusCode != http.StatusServiceUnavailable ||
			again != "1" ||
			!strings.Contains(string(why), "16 Clusters") {
			t.Errorf("reader %d: %s, again after %q s: %s, %v", i+1, response.Status, again, why, err)
		}
	}
	return leave
}

func TestReadersAreBoundedAndReleased(t *testing.T) {
	p := newPage(t, newFleet(40), web.Config{Check: report})
	for _, cancel := range crowd(t, serve(t, p), document(t, p).Rows, 4) {
		cancel()
	}
	eventually.True(t, patience, "no check runs any more", func() error {
		if n := p.Watched(); n > 0 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// TestAPanicWhileObjectsAreReadEndsOnlyThatRead has a panic at the first read of an open page, which is retried.
func TestAPanicWhileObjectsAreReadEndsOnlyThatRead(t *testing.T) {
	fleet := newFleet(1)
	var reads atomic.Int32
	p := newPage(t, fleet, web.Config{Live: func(_ context.Context, ids ...string) *summary.Live {
		if len(ids) > 0 && reads.Add(1) == 1 {
			panic("an object with unexpected content")
		}
		return nil
	}})
	key := fleet.first(func(*v1alpha1.Tunnel) bool { return true })
	s := follow(t, serve(t, p)+"api/cluster/events?namespace="+key.Namespace+"&name="+key.Name, "")
	if kind, _ := s.next(); kind != "cluster" || reads.Load() < 2 {
		t.Errorf("got %s after %d reads, want the cluster after 2", kind, reads.Load())
	}
}

func TestAnOpenPageUpdatesObjectsAndHops(t *testing.T) {
	fleet := newFleet(10)
	p := newPage(t, fleet, web.Config{Check: report})
	key := fleet.first(func(*v1alpha1.Tunnel) bool { return true })
	s := follow(t, serve(t, p)+"api/cluster/events?namespace="+key.Namespace+"&name="+key.Name, "")
	seen := map[string]bool{}
	for !seen["cluster"] || !seen["hops"] {
		kind, data := s.next()
		seen[kind] = true
		if kind == "hops" && (data["first"] != "tunnels" || len(data["hops"].([]any)) < 10) {
			t.Errorf("hops: %v", data)
		}
	}
	fleet.change(key, func(t *v1alpha1.Tunnel) *v1alpha1.Tunnel { return broken(t, "<b>cut</b>") })
	p.Changed(t.Context(), fleet, key)
	for {
		kind, data := s.next()
		if kind == "cluster" {
			if data["row"].(map[string]any)["health"] != "broken" {
				continue
			}
			break
		}
	}
}
