package tunnels

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseEvent(t *testing.T) {
	good := line(eventSetup, "198.51.100.7:45232", "192.0.2.1:443", "edge-1", idA, noon)
	want := Tunnel{Key: "198.51.100.7:45232>192.0.2.1:443", Node: "edge-1", ID: idA, Worker: "worker_0", Since: noon}
	replaced := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	tests := map[string]struct {
		in      string
		want    Tunnel
		wantErr error
	}{
		"a tunnel that opens": {in: good, want: want},
		"one that is used":    {in: replaced("tunnel_setup", "socket_handoff"), want: want},
		"one that ends":       {in: replaced("tunnel_setup", "tunnel_closed"), want: want},
		"a tunnel of a lane": {
			in: inLane(good), want: want,
		},
		"a lane with the tunnel id of a usual tunnel": {in: replaced("CN=edge-1", "CN=edge-1_lane"), wantErr: errID},
		"a usual tunnel with the tunnel id of a lane": {
			in: replaced(domain.TunnelID(idA), domain.TunnelID(idA)+"_lane"), wantErr: errID,
		},
		"a node with another mark":               {in: replaced("CN=edge-1", "CN=edge-1_other"), wantErr: errNode},
		"an event that is not known is an error": {in: replaced("tunnel_setup", "tunnel_painted"), wantErr: errEvent},
		"no owner":                               {in: replaced(`"owner":"tunnel",`, ""), wantErr: errOwner},
		"an Envoy that does not say the gateway's address": {
			in:   replaced(`"local":"192.0.2.1:443"`, `"local":null`),
			want: Tunnel{Key: "198.51.100.7:45232", Node: "edge-1", ID: idA, Worker: "worker_0", Since: noon},
		},
		"an IPv6 address": {
			in:   replaced("198.51.100.7:45232", "[2001:db8::7]:45232"),
			want: Tunnel{Key: "[2001:db8::7]:45232>192.0.2.1:443", Node: "edge-1", ID: idA, Worker: "worker_0", Since: noon},
		},
		"an IPv4 address by a socket of IPv6 is one of IPv4": {
			in:   replaced("198.51.100.7:45232", "[::ffff:198.51.100.7]:45232"),
			want: want,
		},
		"a zone is not part of an address": {
			in:   replaced("198.51.100.7:45232", "[fe80::7%eth0]:45232"),
			want: Tunnel{Key: "[fe80::7]:45232>192.0.2.1:443", Node: "edge-1", ID: idA, Worker: "worker_0", Since: noon},
		},
		"no JSON":                       {in: "[critical] something else", wantErr: errNoJSON},
		"a line that is torn":           {in: good[:len(good)/2], wantErr: errNoJSON},
		"two lines in one":              {in: good[:len(good)/2] + good, wantErr: errNoJSON},
		"JSON of another kind":          {in: `["tunnel_setup"]`, wantErr: errNoJSON},
		"no time":                       {in: replaced("2026-01-01", "yesterday"), wantErr: errNoJSON},
		"no peer":                       {in: replaced("198.51.100.7:45232", "-"), wantErr: errAddress},
		"a peer without a port":         {in: replaced("198.51.100.7:45232", "198.51.100.7:0"), wantErr: errAddress},
		"a name instead of an address":  {in: replaced("192.0.2.1:443", "localhost:443"), wantErr: errAddress},
		"a node id that is no node id":  {in: replaced("CN=edge-1", "edge-1"), wantErr: errNode},
		"a node name that is none":      {in: replaced("CN=edge-1", "CN=edge 1"), wantErr: errNode},
		"a tunnel id of another domain": {in: replaced("tunnels.example.com", "tunnels.example.org"), wantErr: errID},
		"a tunnel hostname for a tunnel id": {
			in:      replaced(domain.TunnelID(idA), "c1.prod.tunnels.example.com"),
			wantErr: errID,
		},
		"a worker that is no name": {in: replaced(`"worker":"worker_0"`, `"worker":"a b"`), wantErr: errWorker},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseEvent(domain, []byte(tt.in))
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("got error %v, want %v", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got.Tunnel); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(passed("relay", eventStart, "198.51.100.7:45232", "192.0.2.1:443", 7)))
	f.Add([]byte(line(eventSetup, "198.51.100.7:45232", "192.0.2.1:443", "edge-1", idA, noon)))
	f.Add([]byte(line(eventClosed, "[2001:db8::7]:45232", "", "edge-1", idB, time.Time{})))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEvent(domain, data)
		if err != nil && e != (event{}) {
			t.Errorf("an error and an event: %v, %+v", err, e)
		}
		if err == nil &&
			(!e.Remote.IsValid() || e.owner == ownerTunnel && (e.Node == "" || e.ID == "") || e.owner != ownerTunnel &&
				e.connection == "") {
			t.Errorf("an event without a connection: %+v", e)
		}
	})
}
