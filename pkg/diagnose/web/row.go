package web

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
)

// columns are the names of the elements of an encoded row.
var columns = []string{
	"namespace", "name", "health", "mode", "hostname", "connected", "letIn", "tunnels", "gateways", "rtt", "changed",
	"expires", "expiresOf", "warnings", "note", "flags",
}

// maxNote bounds the text of a row, in bytes: there may be 10,000 rows.
const maxNote = 240

// rowOf returns the row of a Cluster, or nil if it does not use Fairlead. Either object may be nil.
func rowOf(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, live *summary.Live, now time.Time) *summary.Row {
	in := summary.Input{Live: live}
	if cluster != nil {
		in.Clusters = []clusterv1.Cluster{*cluster}
	}
	if tunnel != nil {
		in.Tunnels = []v1alpha1.Tunnel{*tunnel}
	}
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
	return []any{
		r.Namespace, r.Cluster, r.Health, r.Mode, r.Hostname, r.Connected, r.LetIn, r.Tunnels, len(r.Gateways), round(
			float64(r.RTT)),
		unix(r.LastChange), expires, of, len(r.Warnings), note, strings.Join(flags, " "),
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
