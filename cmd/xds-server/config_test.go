package main

import (
	"bytes"
	"strings"
	"testing"
)

// arguments returns valid arguments with some changed. An empty value removes the flag.
func arguments(change map[string]string) (args []string) {
	all := map[string]string{
		"--tunnel-domain": "tunnels.example.com", "--public-address": "gateways.example.com:443",
		"--control-address": "10.0.0.9:18000",
		"--gateway":         "gateway-0", "--kubeconfig": "/no/such/file", "--state-dir": "/no/such/folder",
		"--health-listen": "0", "--inspect-listen": "0",
	}
	for flag, value := range change {
		all[flag] = value
	}
	for flag, value := range all {
		if value != "" {
			args = append(args, flag+"="+value)
		}
	}
	return args
}

func TestRunRejectsInvalidFlags(t *testing.T) {
	tests := map[string]struct {
		change map[string]string
		more   []string
		want   []string
	}{
		"no tunnel domain": {
			change: map[string]string{"--tunnel-domain": ""},
			want:   []string{"tunnel domain"},
		},
		"no addresses: both flags are named": {
			change: map[string]string{"--public-address": "", "--control-address": "x"},
			want:   []string{"--public-address", "--control-address"},
		},
		"no gateways at all": {
			change: map[string]string{"--gateway": ""},
			want:   []string{"--gateway-statefulset", "--gateway "},
		},
		"gateways in two ways": {
			more: []string{"--gateway-statefulset=gateway"},
			want: []string{"give one of them"},
		},
		"a StatefulSet with another name": {
			change: map[string]string{"--gateway": "", "--gateway-statefulset": "door"},
			want:   []string{"door", "name it gateway"},
		},
		"one address for each replica": {
			more: []string{"--replica-address=gw.example.com:443"},
			want: []string{"--replica-address", "{i}"},
		},
		"the same of a StatefulSet": {
			change: map[string]string{"--gateway": "", "--gateway-statefulset": "gateway"},
			more:   []string{"--replica-address=gw-{i}"},
			want:   []string{"--replica-address", "host:port"},
		},
		"more workers than cores": {
			more: []string{"--gateway-workers=65"},
			want: []string{"workers", "1 to 64"},
		},
		"a gateway with a name of another form": {
			change: map[string]string{"--gateway": "gw"},
			want:   []string{"gateway-<number>"},
		},
		"a gateway with a peer that is no address": {
			change: map[string]string{"--gateway": "gateway-0=x"},
			want:   []string{"--gateway", "host:port"},
		},
		"several gateways without peers": {
			more: []string{"--gateway=gateway-1"},
			want: []string{"peer address of gateway-0", "peer address of gateway-1"},
		},
		"no namespace":                   {more: []string{"--namespace="}, want: []string{"--namespace"}},
		"a kubeconfig that is not there": {want: []string{"/no/such/file"}},
		"a log format that is none":      {more: []string{"--log-format=xml"}, want: []string{"--log-format"}},
		"inspection at an address of the network": {
			change: map[string]string{"--inspect-listen": "0.0.0.0:9447"},
			want:   []string{"--inspect-listen", "loopback", "port-forward"},
		},
		"inspection at all addresses": {
			change: map[string]string{"--inspect-listen": ":9447"},
			want:   []string{"--inspect-listen", "loopback"},
		},
		"a page for the network without TLS": {
			more: []string{"--page-listen=:9448"},
			want: []string{"--page-listen", "--page-certificate", "port-forward"},
		},
		"a page with a certificate without a key": {
			more: []string{"--page-listen=10.0.0.1:9448", "--page-certificate=/x"},
			want: []string{"--page-key"},
		},
		"a page on loopback with a certificate": {
			more: []string{"--page-listen=127.0.0.1:9448", "--page-certificate=/x", "--page-key=/y"},
			want: []string{"--page-listen", "remove --page-certificate"},
		},
		"a certificate for no page": {more: []string{"--page-key=/y"}, want: []string{"set --page-listen"}},
		"an argument":               {more: []string{"start"}, want: []string{"start"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out, err bytes.Buffer
			if code := run(t.Context(), append(arguments(tc.change), tc.more...), &out, &err); code != 1 {
				t.Errorf("exit code %d", code)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.String(), want) {
					t.Errorf("got %q, want %q in it", err.String(), want)
				}
			}
			if out.Len() > 0 {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}
