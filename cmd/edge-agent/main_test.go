package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
	"github.com/fairlead/fairlead/pkg/model"
)

const bootstrap = "id: aaaaaaaaaaaaaaaaaaaaaaaa\ngateway: gw.example.com:443\ntunnelDomain: " +
	"tunnels.example.com\ntoken: fl1.file\nca: the file's CA\n"

func TestRunRejectsInvalidFlags(t *testing.T) {
	dir := t.TempDir()
	good := write(t, dir, "good.yaml", bootstrap)
	noPort := write(t, dir, "bootstrap.yaml", "gateway: gw.example.com\ntunnelDomain: tunnels.example.com\n")
	elsewhere := write(t, dir, "elsewhere.yaml", strings.ReplaceAll(bootstrap, "tunnels.", "other."))
	egress := write(t, dir, "egress.yaml", bootstrap+"role: egress\n")
	egressElsewhere := write(t, dir, "egress2.yaml", strings.ReplaceAll(bootstrap, "tunnels.", "other.")+"role: egress\n")
	unknownRole := write(t, dir, "role.yaml", bootstrap+"role: ingress\n")
	tests := map[string]struct {
		args    []string
		wantErr string
	}{
		"no bootstrap file and no flags": {wantErr: "tunnel domain"},
		"a file that is not there": {
			args:    []string{"--bootstrap", dir + "/none"},
			wantErr: "reading bootstrap file",
		},
		"a gateway without a port": {args: []string{"--bootstrap", noPort}, wantErr: "not host:port"},
		"an id of another form":    {args: []string{"--bootstrap", noPort, "--id", "c1"}, wantErr: "tunnel id"},
		"no gateway": {
			args:    []string{"--tunnel-domain", "tunnels.example.com"},
			wantErr: "--gateway",
		},
		"a proxy that is none": {
			args:    []string{"--bootstrap", good, "--proxy", "socks5://p:1"},
			wantErr: "proxy",
		},
		"an apiserver without a port": {
			args:    []string{"--bootstrap", good, "--local-apiserver", "10.0.0.1"},
			wantErr: "--local-apiserver",
		},
		"a target without a port": {
			args:    []string{"--bootstrap", good, "--allow-target", "10.0.0.1"},
			wantErr: "--allow-target",
		},
		"CIDRs with different ports": {
			args:    []string{"--bootstrap", good, "--allow-target", "10.0.0.0/8", "--allow-target", "fd00::/64:443"},
			wantErr: "the same ports",
		},
		"a place to listen that is a name": {
			args:    []string{"--bootstrap", good, "--apiserver-listen", "localhost:6443"},
			wantErr: "--apiserver-listen",
		},
		"one place to listen for two tunnels": {
			args:    []string{"--bootstrap", good, "--bootstrap", elsewhere, "--apiserver-listen", "127.0.0.1:6443"},
			wantErr: "is for one network",
		},
		"two apiservers": {
			args:    []string{"--bootstrap", egress, "--bootstrap", egressElsewhere},
			wantErr: "beside each apiserver",
		},
		"a socket without a folder": {
			args: []string{
				"--bootstrap", egress, "--egress-socket", "egress.sock", "--envoy", os.Args[0], "--state-dir", t.TempDir(),
			},
			wantErr: "absolute path",
		},
		"a role of another version": {args: []string{"--bootstrap", unknownRole}, wantErr: "newer version"},
		"one id for two files": {
			args:    []string{"--bootstrap", good, "--bootstrap", good, "--id", "aaaaaaaaaaaaaaaaaaaaaaaa"},
			wantErr: "for one tunnel",
		},
		"one gateway for two installations": {
			args:    []string{"--bootstrap", good, "--bootstrap", elsewhere, "--gateway", "a:1"},
			wantErr: "other.example.com",
		},
		"a limit of memory that is no number": {
			args:    []string{"--bootstrap", good, "--envoy-memory", "lots"},
			wantErr: "512Mi",
		},
		"an unknown log level":        {args: []string{"--log-level", "loud"}, wantErr: "--log-level"},
		"an argument that is no flag": {args: []string{"bootstrap.yaml"}, wantErr: "unknown command"},
		"the same tunnel in two files": {
			args:    []string{"--bootstrap", good, "--bootstrap", good, "--envoy", os.Args[0], "--state-dir", t.TempDir()},
			wantErr: "two bootstrap files",
		},
		"a state folder that can't be a place": {
			args:    []string{"--bootstrap", good, "--envoy", os.Args[0], "--state-dir", good},
			wantErr: "creating folder",
		},
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

func TestFlagsOverrideTheBootstrapFile(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "bootstrap.yaml", bootstrap)
	tests := map[string]struct {
		in        options
		gateways  string
		dials     bool // these addresses, and not those of the installation
		domain    model.TunnelDomain
		id        string
		token, ca string
	}{
		"the file alone": {
			in:       options{bootstraps: []string{file}},
			gateways: "gw.example.com:443",
			domain:   "tunnels.example.com",
			id:       "aaaaaaaaaaaaaaaaaaaaaaaa",
			token:    "fl1.file",
			ca:       "the file's CA",
		},
		"flags for all": {
			in: options{
				bootstraps: []string{file},
				id:         "bbbbbbbbbbbbbbbbbbbbbbbb",
				gateways:   []string{"192.0.2.1:8443", "[2001:db8::1]:443"},
				domain:     "tunnels.example.org",
				tokenFile:  write(t, dir, "token", "fl1.flag\n"),
				caFile:     write(t, dir, "ca.crt", "the flag's CA"),
			},
			gateways: "192.0.2.1:8443 [2001:db8::1]:443",
			dials:    true,
			domain:   "tunnels.example.org",
			id:       "bbbbbbbbbbbbbbbbbbbbbbbb",
			token:    "fl1.flag",
			ca:       "the flag's CA",
		},
		"flags without a file": {in: options{
			gateways: []string{
				"192.0.2.1:8443",
			}, domain: "tunnels.example.org", tokenFile: dir + "/token", caFile: dir + "/ca.crt",
		}, gateways: "192.0.2.1:8443", dials: true, domain: "tunnels.example.org", token: "fl1.flag", ca: "the flag's CA"},
		"a file with two gateways": {in: options{
			bootstraps: []string{
				write(t, dir, "two.yaml", "gateways: [a.example.com:443, b.example.com:443]\ntunnelDomain: tunnels.example.com\n"),
			},
		}, gateways: "a.example.com:443 b.example.com:443", dials: true, domain: "tunnels.example.com"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.in.proxyGiven = true // explicitly none
			tc.in.log, tc.in.agent.StateDir = slog.New(slog.DiscardHandler), t.TempDir()
			edges, err := tc.in.edges()
			if err != nil || len(edges) != 1 {
				t.Fatalf("got %d, %v", len(edges), err)
			}
			edge := edges[0]
			credential, err := edge.Credential()
			if err != nil {
				t.Fatal(err)
			}
			if got := join(edge.Dialer.Addresses); got != tc.gateways {
				t.Errorf("the way is to %s", got)
			}
			if got := join(edge.Gateways); (tc.dials && got != tc.gateways) || (!tc.dials && got != "") {
				t.Errorf("Envoy dials %q", got)
			}
			if edge.Domain != tc.domain || credential.Token != tc.token || string(credential.CA) != tc.ca ||
				credential.ID != tc.id {
				t.Errorf("got %s, %s, %s, %s", edge.Domain, credential.ID, credential.Token, credential.CA)
			}
		})
	}
}

func join(endpoints []model.Endpoint) string {
	var all []string
	for _, e := range endpoints {
		all = append(all, e.String())
	}
	return strings.Join(all, " ")
}

func TestTheProxyOfTheEnvironmentIsTheDefault(t *testing.T) {
	file := write(t, t.TempDir(), "bootstrap.yaml", bootstrap)
	tests := map[string]struct {
		environment map[string]string
		in          options
		want        bool
	}{
		"none":                    {},
		"that of the environment": {environment: map[string]string{"HTTPS_PROXY": "http://proxy:3128"}, want: true},
		"with an exception for the gateway": {
			environment: map[string]string{"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".example.com"},
		},
		"none by flag": {
			environment: map[string]string{"HTTPS_PROXY": "http://proxy:3128"},
			in:          options{proxyGiven: true},
		},
		"one by flag": {in: options{proxyGiven: true, proxy: "http://proxy:3128"}, want: true},
		"one by flag, with an exception": {
			in: options{proxyGiven: true, proxy: "http://proxy:3128", noProxy: "gw.example.com"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"} {
				t.Setenv(key, tc.environment[key])
			}
			tc.in.bootstraps = []string{file}
			edges, err := tc.in.edges()
			if err != nil {
				t.Fatal(err)
			}
			if got := edges[0].Dialer.Proxied(); got != tc.want {
				t.Errorf("by a proxy: %t", got)
			}
		})
	}
}

// TestTheHelpListsEveryFlag checks that the help is sufficient for users who have only the program.
func TestTheHelpListsEveryFlag(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"run", "--help"}, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	for _, want := range []string{
		"<cluster>-edge-bootstrap", "edge-agent run --bootstrap=", "--proxy=http://", "--local-apiserver=127.0.0.1:6443",
		"--allow-target=", "TLS-inspecting", "--envoy-memory", "--drain-timeout",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not have %q", want)
		}
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "  edge-agent run --") {
			check(t, strings.Fields(line)[1:])
		}
	}
}

// TestDeployedManifestsUseValidFlags checks the manifests and the systemd unit.
func TestDeployedManifestsUseValidFlags(t *testing.T) {
	const folder = "../../deploy/edge/"
	for _, name := range []string{"static-pod.yaml", "deployment.yaml", "sidecar.yaml"} {
		data, err := os.ReadFile(folder + name)
		if err != nil {
			t.Fatal(err)
		}
		documents := bytes.Split(data, []byte("\n---\n")) // the Pods are in the last one
		var m manifest
		if err := yaml.Unmarshal(documents[len(documents)-1], &m); err != nil {
			t.Fatal(err)
		}
		containers := slices.Concat(
			m.Spec.InitContainers, m.Spec.Containers, m.Spec.Template.Spec.InitContainers, m.Spec.Template.Spec.Containers,
		)
		found := 0
		for _, c := range containers {
			if c.Image == "fairlead-edge" {
				found++
				check(t, c.Args)
			}
		}
		if found == 0 {
			t.Errorf("%s does not start the program", name)
		}
	}
	unit, err := os.ReadFile(folder + "edge-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		if command, ok := strings.CutPrefix(line, "ExecStart=/usr/local/bin/edge-agent "); ok {
			check(t, strings.Fields(strings.TrimSuffix(strings.TrimSpace(command), "$JOIN_FLAGS $EDGE_AGENT_FLAGS")))
			return
		}
	}
	t.Error("the unit does not start the program")
}

// manifest is a Pod, or an object with a Pod template. The edge-agent and its tests do not link Kubernetes.
type manifest struct {
	Spec struct {
		pod
		Template struct {
			Spec pod `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

type pod struct {
	InitContainers []container `json:"initContainers"`
	Containers     []container `json:"containers"`
}

type container struct {
	Image string   `json:"image"`
	Args  []string `json:"args"`
}

// check fails the test if the program rejects a command line.
func check(t *testing.T, args []string) {
	t.Helper()
	cmd := runCommand()
	if args[0] == "bootstrap" {
		cmd = bootstrapCommand()
	} else if args[0] != "run" {
		t.Errorf("%q is no command", args[0])
	}
	var flags []string
	for _, a := range args[1:] {
		if a != `\` {
			flags = append(flags, a)
		}
	}
	if err := cmd.ParseFlags(flags); err != nil || len(cmd.Flags().Args()) > 0 {
		t.Errorf("%q: %v, and %q", args, err, cmd.Flags().Args())
	}
}

func TestBootstrapIsWrittenForASeparateEnvoy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "edge")
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"bootstrap", "--state-dir", dir, "--envoy-memory", "300Mi"}, &out,
		&errs); code != 0 {
		t.Fatal(errs.String())
	}
	data, err := os.ReadFile(filepath.Join(dir, envoyproc.BootstrapFileName))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte("314572800")) {
		t.Errorf("the limit of memory is not in it:\n%s", data)
	}
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		t.Fatal(err)
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
