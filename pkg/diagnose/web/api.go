package web

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"time"
)

// document is the whole fleet.
type document struct {
	Domain  string            `json:"domain"`
	Cursor  string            `json:"cursor"` // to start the stream of changes from
	Now     int64             `json:"now"`    // Unix, s
	Columns []string          `json:"columns"`
	Rows    []json.RawMessage `json:"rows"` // arrays, in the order of Columns
}

// payload is the last document that was sent. Concurrent readers share it.
type payload struct {
	cursor string
	made   time.Time
	zip    []byte
}

// payloadTime is how long an older document may be sent: the stream has all later changes.
const payloadTime = time.Second

// serveFleet answers with all rows.
func (p *Page) serveFleet(w http.ResponseWriter, r *http.Request) {
	d, ok := p.document()
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the objects of the management cluster have not been read yet", http.StatusServiceUnavailable)
		return
	}
	send(w, r, "application/json", `"`+d.cursor+`"`, nil, d.zip)
}

// document is created under the lock, so that many concurrent readers cost no more than one.
func (p *Page) document() (payload, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read {
		return payload{}, false
	}
	now := p.Now()
	// The document of a quiet fleet is made anew too: a reader takes its Now for the server's time until the next beat.
	age := now.Sub(p.payload.made)
	current := age < payloadTime || age < p.Timing.Beat && p.payload.cursor == p.fleet.now()
	if p.payload.zip != nil && current {
		return p.payload, true
	}
	rows, cursor := p.fleet.all()
	plain, err := json.Marshal(
		document{Domain: string(p.Domain), Cursor: cursor, Now: now.Unix(), Columns: columns, Rows: rows},
	)
	if err != nil {
		p.Log.Error("cannot encode the rows of the page", "error", err)
		return payload{}, false
	}
	p.payload = payload{cursor: cursor, made: now, zip: zipped(plain, gzip.BestSpeed)}
	return p.payload, true
}
