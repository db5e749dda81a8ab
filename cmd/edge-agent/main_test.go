package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

const bootstrap = "id: aaaaaaaaaaaaaaaaaaaaaaaa\ngateway: gw.example.com:443\ntunnelDomain: tunnels.example.com\ntoken: fl1.file\nca: the file's CA\n"

func TestRunRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "bootstrap.yaml", "gateway: gw.example.com\ntunnelDomain: tunnels.example.com\n")
	tests := map[string]struct {
		args    []string
		wantErr string
	}{
		"no bootstrap file and no flags": {wantErr: "tunnel domain"},
		"a file that is not there":       {args: []string{"--bootstrap", dir + "/none"}, wantErr: "reading bootstrap file"},
		"a gateway without a port":       {args: []string{"--bootstrap", dir + "/bootstrap.yaml"}, wantErr: "not host:port"},
		"an id of another form":          {args: []string{"--bootstrap", dir + "/bootstrap.yaml", "--id", "c1"}, wantErr: "tunnel id"},
		"no gateway":                     {args: []string{"--tunnel-domain", "tunnels.example.com"}, wantErr: "--gateway"},
		"an unknown log level":           {args: []string{"--log-level", "loud"}, wantErr: "--log-level"},
		"an argument that is no flag":    {args: []string{"bootstrap.yaml"}, wantErr: "unknown command"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out, err bytes.Buffer
			if code := run(t.Context(), append([]string{"run", "--state-dir", dir}, tc.args...), &out, &err); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if got := err.String(); !strings.Contains(got, tc.wantErr) || strings.Count(got, "\n") != 1 {
				t.Errorf("got %q, want one line with %q", got, tc.wantErr)
			}
		})
	}
}

func TestFlagsWinOverTheBootstrapFile(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "bootstrap.yaml", bootstrap)
	tests := map[string]struct {
		in        options
		gateway   string
		domain    model.TunnelDomain
		id        string
		token, ca string
	}{
		"the file alone": {in: options{bootstrap: file}, gateway: "gw.example.com:443", domain: "tunnels.example.com", id: "aaaaaaaaaaaaaaaaaaaaaaaa", token: "fl1.file", ca: "the file's CA"},
		"flags for all": {in: options{
			bootstrap: file, id: "bbbbbbbbbbbbbbbbbbbbbbbb", gateway: "192.0.2.1:8443", domain: "tunnels.example.org",
			tokenFile: write(t, dir, "token", "fl1.flag\n"), caFile: write(t, dir, "ca.crt", "the flag's CA"),
		}, gateway: "192.0.2.1:8443", domain: "tunnels.example.org", id: "bbbbbbbbbbbbbbbbbbbbbbbb", token: "fl1.flag", ca: "the flag's CA"},
		"flags without a file": {in: options{
			gateway: "192.0.2.1:8443", domain: "tunnels.example.org", tokenFile: dir + "/token", caFile: dir + "/ca.crt",
		}, gateway: "192.0.2.1:8443", domain: "tunnels.example.org", token: "fl1.flag", ca: "the flag's CA"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			role, err := tc.in.role()
			if err != nil {
				t.Fatal(err)
			}
			credential, err := role.Credential()
			if err != nil {
				t.Fatal(err)
			}
			if role.Gateway.String() != tc.gateway || role.Domain != tc.domain || credential.Token != tc.token || string(credential.CA) != tc.ca || credential.ID != tc.id {
				t.Errorf("got %s, %s, %s, %s, %s", role.Gateway, role.Domain, credential.ID, credential.Token, credential.CA)
			}
		})
	}
}

func write(t *testing.T, dir, name, data string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
