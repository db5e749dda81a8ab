package web

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// stream writes server-sent events to one reader.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration // of one write
}

// open begins a stream. The result's ctx ends when the reader disconnects, or after the duration of a stream.
func (p *Page) open(w http.ResponseWriter, r *http.Request) (*stream, context.Context, context.CancelFunc) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx would buffer events
	s := &stream{w: w, control: http.NewResponseController(w), limit: p.Timing.Write}
	_ = s.control.SetReadDeadline(time.Time{}) // that of the request would end the stream too
	// Streams that began together do not end together.
	lasts := p.Timing.Stream - time.Duration(rand.Int64N(int64(p.Timing.Stream/5)+1))
	ctx, cancel := context.WithTimeout(r.Context(), lasts)
	return s, ctx, cancel
}

// send writes one event, or fails if the reader does not take it in time. An empty id leaves the reader's unchanged.
func (s *stream) send(event, id string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encoding event %s: %w", event, err)
	}
	var b strings.Builder
	if id != "" {
		fmt.Fprintf(&b, "id: %s\n", id)
	}
	fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", event, text) // JSON has no line breaks
	return s.write(b.String())
}

func (s *stream) write(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.limit)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	if err := s.control.Flush(); err != nil {
		return err
	}
	// With HTTP/2 a write deadline ends the stream even if nothing is being written, and beats are further apart.
	return s.control.SetWriteDeadline(time.Time{})
}

// begin sends the first line of every stream: when a disconnected reader reconnects, in ms.
func (s *stream) begin() error {
	return s.write(fmt.Sprintf("retry: %d\n\n", 1000+rand.IntN(2000)))
}

// beat shows a reader that the connection works, which EventSource does not report otherwise, and the server's time.
type beat struct {
	Now int64 `json:"now"` // Unix, s
}

// lastSeen returns the last event that a reader received: of a broken stream, or of the document.
func lastSeen(r *http.Request) string {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		return id
	}
	return r.URL.Query().Get("since")
}

// streamFleet sends rows that change.
func (p *Page) streamFleet(w http.ResponseWriter, r *http.Request) {
	s, ctx, cancel := p.open(w, r)
	defer cancel()
	if r.Method == http.MethodHead {
		return
	}
	if s.begin() != nil {
		return
	}
	defer p.following.Add(-1)
	if p.following.Add(1) == 1 {
		select {
		case p.first <- struct{}{}:
		default:
		}
	}
	cursor := lastSeen(r)
	ticker := time.NewTicker(p.Timing.Beat)
	defer ticker.Stop()
	for {
		next := p.fleet.next() // before since: a change between the two is not missed
		after, err := p.sendChanges(s, cursor)
		if err != nil {
			return
		}
		cursor = after
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if s.send("beat", "", beat{Now: p.Now().Unix()}) != nil {
				return
			}
			continue
		case <-next:
		}
		if !wait(ctx, p.Timing.Gather) {
			return
		}
	}
}

// sendChanges sends all changes after a cursor.
func (p *Page) sendChanges(s *stream, cursor string) (string, error) {
	for {
		d, after, ok := p.fleet.since(cursor)
		switch {
		case !ok:
			return after, s.send("reset", after, struct{}{}) // the reader reads the whole fleet again
		case len(d.Rows) == 0 && len(d.Gone) == 0:
			return after, nil
		}
		if err := s.send("rows", after, d); err != nil {
			return cursor, err
		}
		cursor = after
	}
}

// wait returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
