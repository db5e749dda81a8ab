package web

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fairlead/fairlead/pkg/diagnose/summary"
)

// columns are the names of the elements of an encoded row.
var columns = []string{
	"namespace", "name", "health", "mode", "hostname", "connected", "letIn", "tunnels", "gateways", "rtt", "changed",
	"expires", "expiresOf", "warnings", "note", "flags", "networks", "networksOK",
}

// maxNote bounds the text of a row, in bytes: there may be 10,000 rows.
const maxNote = 240

// rowOf returns the row of a Cluster, or nil if it does not use Fairlead.
func rowOf(in summary.Input, now time.Time) *summary.Row {
	if view := summary.Build(in, now); len(view.Rows) > 0 {
		return &view.Rows[0]
	}
	return nil
}

// wire is a row in the order of columns. Times are Unix, in s; 0: not known.
func wire(r *summary.Row) []any {
	var expires int64
	var of, note string
	if len(r.Expiries) > 0 {
		expires, of = unix(r.Expiries[0].NotAfter), r.Expiries[0].Of
	}
	if len(r.Warnings) > 0 {
		note = short(r.Warnings[0].Text, maxNote)
	}
	var flags []string
	if r.Paused {
		flags = append(flags, "paused")
	}
	if r.Deleting {
		flags = append(flags, "deleting")
	}
	ready := 0
	for i := range r.Networks {
		if r.Networks[i].Health == summary.OK {
			ready++
		}
	}
	return []any{
		r.Namespace, r.Cluster, r.Health, r.Mode, r.Hostname, r.Connected, r.LetIn, r.Tunnels, len(r.Gateways), round(
			float64(r.RTT)),
		unix(r.LastChange), expires, of, len(r.Warnings), note, strings.Join(flags, " "),
		len(r.Networks), ready,
	}
}

// unix returns a Unix time, or 0 for the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// round keeps two digits, so that small variations of a round-trip time are not changes.
func round(v float64) float64 {
	if v <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	return math.Round(math.Round(v/unit)*unit*1000) / 1000
}

// short cuts a text at a character boundary.
func short(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}
