package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

func TestRunRejectsInvalidFlags(t *testing.T) {
	good := map[string]string{
		"--name": "gateway-0", "--xds-server": "xds.example.com:8443", "--tunnel-domain": "tunnels.example.com",
		"--ca-file": "ca.crt", "--token-file": "token", "--state-dir": t.TempDir(),
	}
	tests := map[string]struct {
		flag, value string
		wantErr     string
	}{
		"a name of another form": {flag: "--name", value: "gw", wantErr: "gateway-<number>"},
		"no xds-server":          {flag: "--xds-server", wantErr: "--xds-server"},
		"no tunnel domain":       {flag: "--tunnel-domain", wantErr: "tunnel domain"},
		"no CA":                  {flag: "--ca-file", wantErr: "--ca-file is missing"},
		"no credential":          {flag: "--token-file", wantErr: "give one of"},
		"two credentials":        {flag: "--service-account-token-file", value: "token", wantErr: "give one of"},
		"a listener on a name": {
			flag:    "--public-listen",
			value:   "gw.example.com:443",
			wantErr: "not an IP address",
		},
		"a listener with port 0":          {flag: "--apiserver-listen", value: ":0", wantErr: "--apiserver-listen"},
		"a listener without a port":       {flag: "--connect-listen", value: "0.0.0.0", wantErr: "--connect-listen"},
		"a state folder with a long path": {flag: "--state-dir", value: "/" + strings.Repeat("a", 120), wantErr: "too long"},
		"a deadline that is none":         {flag: "--ready-deadline", value: "0s", wantErr: "--ready-deadline"},
		"xds-servers without a port":      {flag: "--xds-servers", value: "xds.example.com", wantErr: "--xds-servers"},
		"a balancer that is no network":   {flag: "--proxy-protocol-from", value: "10.0.0.1", wantErr: "is not a network"},
		"a balancer of both families":     {flag: "--proxy-protocol-from", value: "::ffff:0:0/64", wantErr: "not a network"},
		"relays without a balancer":       {flag: "--proxy-protocol-relays", value: "10.0.0.0/8", wantErr: "it needs"},
		"fewer than no gateways":          {flag: "--gateways-per-tunnel", value: "-1", wantErr: "not from 1 to 100"},
		"forwarding and PROXY headers": {
			flag: "--gateways-per-tunnel=2", value: "--proxy-protocol-from=10.0.0.0/8", wantErr: "--proxy-protocol-from",
		},
		"workers without NET_ADMIN":        {flag: "--net-admin=false", value: "--workers=2", wantErr: "--workers=1"},
		"a number of workers that is none": {flag: "--workers", value: "-2", wantErr: "workers"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args := []string{"run"}
			for flag, value := range good {
				if flag != tc.flag {
					args = append(args, flag, value)
				}
			}
			var out, err bytes.Buffer
			if code := run(t.Context(), append(args, tc.flag, tc.value), &out, &err); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if got := err.String(); !strings.Contains(got, tc.wantErr) {
				t.Errorf("got %q, want %q in it", got, tc.wantErr)
			}
		})
	}
}

// TestAGatewayListensOnBothFamilies has the flags of the manifest: Pods may have addresses of either family.
func TestAGatewayListensOnBothFamilies(t *testing.T) {
	if !sockets.HasIPv6() {
		t.Skip("this machine has no IPv6")
	}
	var o options
	cmd := &cobra.Command{}
	o.addTo(cmd)
	if err := cmd.ParseFlags([]string{"--public-listen=:8443", "--connect-listen=[::1]:3128"}); err != nil {
		t.Fatal(err)
	}
	got, err := o.bind()
	want := envoy.GatewayBind{
		Public:    model.Endpoint{Host: "::", Port: 8443},
		APIServer: model.Endpoint{Host: "::", Port: 6443},
		Connect:   model.Endpoint{Host: "::1", Port: 3128},
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestTheCredentialIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "ca.crt", "CA")
	for flag, read := range map[string]func(enrolclient.GatewayCredential) string{
		"token":           func(c enrolclient.GatewayCredential) string { return c.Token },
		"service account": func(c enrolclient.GatewayCredential) string { return c.ServiceAccountToken },
	} {
		t.Run(flag, func(t *testing.T) {
			path := filepath.Join(dir, flag)
			o := options{caFile: filepath.Join(dir, "ca.crt"), tokenFile: path}
			if flag == "service account" {
				o.tokenFile, o.serviceAccountTokenFile = "", path
			}
			for _, want := range []string{"first", "second"} {
				write(t, dir, flag, want+"\n")
				credential, ca, err := o.credential()
				if err != nil {
					t.Fatal(err)
				}
				if read(credential) != want || string(ca) != "CA" {
					t.Errorf("got %q, want %q", read(credential), want)
				}
			}
		})
	}
}

func write(t *testing.T, dir, name, data string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}
