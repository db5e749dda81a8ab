package model_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

func TestHostname(t *testing.T) {
	tests := map[string]struct {
		in      model.Key
		want    string
		wantErr string
	}{
		"cluster, namespace and domain are joined": {
			in:   model.Key{Namespace: "prod", Name: "c1"},
			want: "c1.prod.tunnels.example.com",
		},
		"dots become two hyphens": {
			in:   model.Key{Namespace: "prod", Name: "a.b"},
			want: "a--b.prod.tunnels.example.com",
		},
		"a name of 64 bytes is no DNS label": {
			in:      model.Key{Namespace: "prod", Name: strings.Repeat("a", 64)},
			wantErr: "metadata.name",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := domain.Hostname(tc.in)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestHostnameOver253BytesIsRejected(t *testing.T) {
	long := model.TunnelDomain(strings.Repeat("d.", 65) + "example.com")
	_, err := long.Hostname(model.Key{Namespace: strings.Repeat("n", 60), Name: strings.Repeat("c", 60)})
	checkError(t, err, "at most 253")
}

func TestNamesParseBack(t *testing.T) {
	id := model.NewID()
	if got, ok := domain.ParseTunnelID(domain.TunnelID(id)); !ok || got != id {
		t.Errorf("tunnel id: got %q, %v", got, ok)
	}
	if err := model.ValidateID(id); err != nil {
		t.Errorf("a new id is not valid: %v", err)
	}
	node := model.NewNodeName()
	if got, ok := model.ParseNodeID(model.NodeID(node)); !ok || got != node {
		t.Errorf("node id: got %q, %v", got, ok)
	}
	again := model.NodeNameFor("hash", []byte("request"))
	if model.ValidateNodeName(again) != nil || model.ValidateGatewayName(again) == nil || len(again) != len(node) {
		t.Errorf("node name %q", again)
	}
	for _, other := range []string{model.NodeNameFor("hash", []byte("requesu")), model.NodeNameFor("hasi",
		[]byte("request")), model.NodeNameFor("hashr", []byte("equest"))} {
		if other == again {
			t.Errorf("node name %q is of another token or request too", other)
		}
	}
	if got := model.NodeNameFor("hash", []byte("request")); got != again {
		t.Errorf("node name %q, and then %q", again, got)
	}
	if got, ok := domain.ParseGatewayReplica(domain.GatewayReplica("gateway-12")); !ok || got != "gateway-12" {
		t.Errorf("gateway: got %q, %v", got, ok)
	}
}

// TestLanesAreNoOtherNames: what is opened in a lane does not count as what it is opened for.
func TestLanesAreNoOtherNames(t *testing.T) {
	if got := domain.Lane("gateway-0", 2); got != "gateway-0-lane-2."+string(domain) {
		t.Errorf("the lane is %s", got)
	}
	if node, ok := model.ParseNodeID(model.NodeID("edge-1") + model.LaneMark); ok {
		t.Errorf("the node id of a lane is that of %s", node)
	}
	id := domain.TunnelID(model.NewID()) + model.LaneMark
	if got, ok := domain.ParseTunnelID(id); ok {
		t.Errorf("%s is the tunnel id of %s", id, got)
	}
	if err := model.ValidateDNSName(id); err == nil {
		t.Errorf("%s is a DNS name, which a client may send", id)
	}
}

func TestNamesOfOneKindAreNeverNamesOfAnother(t *testing.T) {
	for _, name := range []string{domain.Gateway(), domain.GatewayReplica("gateway-0"), domain.Control(), "c1.id." +
		string(domain)} {
		if id, ok := domain.ParseTunnelID(name); ok {
			t.Errorf("%s is read as tunnel id %s", name, id)
		}
	}
	for _, name := range []string{domain.Gateway(), domain.Control(), domain.TunnelID(model.NewID()), "gateway-00." +
		string(domain)} {
		if replica, ok := domain.ParseGatewayReplica(name); ok {
			t.Errorf("%s is read as gateway %s", name, replica)
		}
	}
}

func TestValidateDNSName(t *testing.T) {
	tests := map[string]struct {
		in      string
		wantErr string
	}{
		"a name":                            {in: "api.example.com"},
		"empty":                             {in: "", wantErr: "empty"},
		"an IPv4 address":                   {in: "192.0.2.1", wantErr: "IP address"},
		"an IPv6 address":                   {in: "2001:db8::1", wantErr: "IP address"},
		"one label":                         {in: "xds_server", wantErr: "no dot"},
		"an underscore":                     {in: "a_b.example.com", wantErr: "label"},
		"upper case":                        {in: "API.example.com", wantErr: "label"},
		"a trailing dot":                    {in: "api.example.com.", wantErr: "label"},
		"a wildcard":                        {in: "*.example.com", wantErr: "label"},
		"a hyphen at the end of a label":    {in: "a-.example.com", wantErr: "hyphen"},
		"a label of 64 bytes":               {in: strings.Repeat("a", 64) + ".com", wantErr: "at most 63"},
		"254 bytes":                         {in: strings.Repeat("a.", 126) + "aa", wantErr: "at most 253"},
		"what would break an rc:// address": {in: "a@b.example.com", wantErr: "label"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			checkError(t, model.ValidateDNSName(tc.in), tc.wantErr)
		})
	}
}

func TestParseEndpoint(t *testing.T) {
	tests := map[string]struct {
		in      string
		want    model.Endpoint
		wantErr string
	}{
		"a name":          {in: "gw.example.com:443", want: model.Endpoint{Host: "gw.example.com", Port: 443}},
		"one label":       {in: "localhost:443", want: model.Endpoint{Host: "localhost", Port: 443}},
		"an IPv6 address": {in: "[2001:db8::1]:443", want: model.Endpoint{Host: "2001:db8::1", Port: 443}},
		"an underscore":   {in: "_api.my_cluster:443", want: model.Endpoint{Host: "_api.my_cluster", Port: 443}},
		"253 bytes": {
			in:   strings.Repeat("a.", 126) + "a:443",
			want: model.Endpoint{Host: strings.Repeat("a.", 126) + "a", Port: 443},
		},
		"254 bytes":      {in: strings.Repeat("a.", 126) + "aa:443", wantErr: "must be an IP address or a DNS name"},
		"upper case":     {in: "GW.example.com:443", wantErr: "must be an IP address or a DNS name"},
		"a trailing dot": {in: "gw.example.com.:443", wantErr: "must be an IP address or a DNS name"},
		"no port":        {in: "gw.example.com", wantErr: "host:port"},
		"port 0":         {in: "gw.example.com:0", wantErr: "1 to 65535"},
		"port 65536":     {in: "gw.example.com:65536", wantErr: "1 to 65535"},
		"no host":        {in: ":443", wantErr: "must be an IP address or a DNS name"},
		"a path":         {in: "gw/x:443", wantErr: "must be an IP address or a DNS name"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := model.ParseEndpoint(tc.in)
			checkError(t, err, tc.wantErr)
			if diff := cmp.Diff(tc.want, got); tc.wantErr == "" && diff != "" {
				t.Error(diff)
			}
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Fatalf("got error %v, want one with %q", err, want)
	}
}
