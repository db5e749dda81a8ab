package edge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestReadBootstrapFile(t *testing.T) {
	tests := map[string]struct {
		in      string
		want    BootstrapFile
		wantErr string
	}{
		"a whole one": {
			in: "id: abc\ngateway: gw.example.com:443\ntunnelDomain: tunnels.example.com\ntoken: fl1.abc\nca: |\n  line 1\n  " +
				"line 2\n",
			want: BootstrapFile{
				ID:           "abc",
				Gateway:      Addresses{"gw.example.com:443"},
				TunnelDomain: "tunnels.example.com",
				Token:        "fl1.abc",
				CA:           "line 1\nline 2\n",
			},
		},
		"one of an apiserver": {
			in: "token: fl1.abc\nrole: egress\n", want: BootstrapFile{Token: "fl1.abc", Role: model.RoleEgress},
		},
		"several gateways": {
			in:   "gateway: [a.example.com:443, b.example.com:443]\n",
			want: BootstrapFile{Gateway: Addresses{"a.example.com:443", "b.example.com:443"}},
		},
		"several gateways, in the plural": {
			in:   "gateways:\n- a.example.com:443\n",
			want: BootstrapFile{Gateways: Addresses{"a.example.com:443"}},
		},
		"a gateway that is no address": {in: "gateway: {host: a}\ntoken: fl1.abc\n", wantErr: "is not YAML"},
		"a field of a newer version": {
			in:   "token: fl1.abc\nproxy: http://proxy:3128\n",
			want: BootstrapFile{Token: "fl1.abc"},
		},
		"an empty one": {},
		"invalid YAML, which the error does not quote": {in: "token: [fl1.abc", wantErr: "is not YAML"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bootstrap.yaml")
			if err := os.WriteFile(path, []byte(tc.in), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadBootstrapFile(path)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), "fl1") {
					t.Errorf("got %v, want an error with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
