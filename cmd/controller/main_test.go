package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRunRejectsInvalidFlags(t *testing.T) {
	good := []string{
		"--tunnel-domain=tunnels.example.com",
		"--public-address=gw:443",
		"--apiserver-address=gw:6443",
		"--connect-address=gw:3128",
	}
	tests := map[string]struct {
		args    []string
		wantErr string
	}{
		"no arguments":                 {wantErr: "--public-address"},
		"an address without port":      {args: append(good[:3:3], "--connect-address=gw"), wantErr: "--connect-address"},
		"no tunnel domain":             {args: good[1:], wantErr: "tunnel domain"},
		"a tunnel domain of one label": {args: append(good[1:4:4], "--tunnel-domain=tunnels"), wantErr: "tunnel domain"},
		"an unknown tunnel DNS":        {args: append(good[:4:4], "--tunnel-dns=maybe"), wantErr: "tunnel DNS"},
		"leaves of less than a second": {args: append(good[:4:4], "--leaf-lifetime=999ms"), wantErr: "leaf lifetime"},
		"a CA that ends in a rotation": {args: append(good[:4:4], "--ca-lifetime=4000h"), wantErr: "CA lifetime"},
		"an overlap before it begins":  {args: append(good[:4:4], "--ca-overlap=-1h"), wantErr: "CA overlap"},
		"an xds-server without port":   {args: append(good[:4:4], "--xds-server=xds"), wantErr: "--xds-server"},
		"tokens of no time":            {args: append(good[:4:4], "--token-lifetime=0"), wantErr: "token lifetime"},
		"invalid token settings":       {args: append(good[:4:4], "--token-uses=0"), wantErr: "token uses: 0"},
		"less than no writes":          {args: append(good[:4:4], "--status-writes=-1"), wantErr: "writes of status"},
		"no user to listen to":         {args: append(good[:4:4], "--xds-server-user="), wantErr: "user of the xds-server"},
		"no namespace":                 {args: append(good[:4:4], "--namespace="), wantErr: "namespace"},
		"an unknown log level":         {args: append(good[:4:4], "--log-level=loud"), wantErr: "--log-level"},
		"a kubeconfig that is not there": {
			args:    append(good[:4:4], "--kubeconfig=/nowhere"),
			wantErr: "kubeconfig of the management cluster",
		},
		"gateways without tunnels": {args: append(good[:4:4], "--tunnels=false"), wantErr: "without tunnels"},
		"no tunnels and no kubeconfig": {
			args:    []string{"--tunnels=false", "--kubeconfig=/nowhere"},
			wantErr: "kubeconfig of the management cluster",
		},
		"an argument too many": {args: append(good[:4:4], "please"), wantErr: "please"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tc.args, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), tc.wantErr) {
				t.Errorf("exit code %d, stderr %q; want 1 and %q", code, stderr.String(), tc.wantErr)
			}
		})
	}
}

func TestHelpSucceeds(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &stdout, &stderr); code != 0 ||
		!strings.Contains(stdout.String(), "--tunnel-domain") ||
		stderr.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}
