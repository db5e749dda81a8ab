package edge_test

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
)

// unit is a unit file of systemd: the values of each key, by section.
type unit map[string]map[string][]string

// readUnit parses the part of systemd.syntax(7) that the file uses: comments, sections, and key=value on one line.
func readUnit(t *testing.T, name string) unit {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	u, section := unit{}, ""
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
			u[section] = map[string][]string{}
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || section == "" || strings.HasSuffix(line, `\`) {
				t.Fatalf("%s:%d: %q is no setting", name, n, line)
			}
			u[section][key] = append(u[section][key], value)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return u
}

const (
	agentUnit = "edge-agent.service"
	envoyUnit = "edge-envoy.service"
)

func TestTheUnitsOfSystemd(t *testing.T) {
	both := []struct{ section, key, value, why string }{
		{"Unit", "StartLimitIntervalSec", "0", "it must never be given up"},
		{"Service", "Restart", "always", "it must come back"},
		{"Service", "RuntimeDirectory", "fairlead-edge", "they meet there"},
		{"Service", "RuntimeDirectoryPreserve", "yes", "one must not take away the sockets of the other"},
		{"Service", "RuntimeDirectoryMode", "0700", "whoever opens a socket in it gets the keys"},
		{"Service", "User", "fairlead", "it must not be root, nor another user than the other unit"},
		{"Service", "CapabilityBoundingSet", "", "it needs no capability"},
		{"Service", "NoNewPrivileges", "yes", "it must not get any"},
		{"Service", "ProtectSystem", "strict", "it writes to its own folders"},
		{"Service", "ProtectHome", "yes", "it reads nobody's files"},
		{"Service", "PrivateDevices", "yes", "it needs none"},
		{"Service", "RestrictNamespaces", "yes", "it needs none"},
		{"Service", "SystemCallFilter", "@system-service", "it needs no others"},
	}
	for _, name := range []string{agentUnit, envoyUnit} {
		u := readUnit(t, name)
		for _, want := range both {
			u.has(t, want.section, want.key, want.value, want.why)
		}
		if u.last("Service", "MemoryMax") == "" {
			t.Errorf("%s: a leak would take the machine along", name)
		}
	}
	u := readUnit(t, agentUnit)
	u.has(t, "Install", "WantedBy", "multi-user.target", "it must start with the machine")
	u.has(t, "Service", "ExecReload", "/bin/kill -HUP $MAINPID", "the agent must be replaced without Envoy")
	u.has(t, "Service", "StateDirectoryMode", "0700", "keys are in it")
	stop, err := time.ParseDuration(u.last("Service", "TimeoutStopSec") + "s")
	if err != nil || stop < 30*time.Second {
		t.Errorf("TimeoutStopSec=%s leaves no time to drain: %v", stop, err)
	}
	command := strings.Fields(u.last("Service", "ExecStart"))
	for _, want := range []string{"--state-dir=/var/lib/" + u.last("Service", "StateDirectory"), "--runtime-dir=/run/" +
		u.last("Service", "RuntimeDirectory"), "--envoy-external"} {
		if !slices.Contains(command, want) {
			t.Errorf("%q does not have %s", command, want)
		}
	}
}

// TestEnvoyAndAgentEndByThemselves: a crash of one, or its end because of memory pressure, does not end the other.
// Nothing of either is left when the agent's unit is stopped, in any state of the agent.
func TestEnvoyAndAgentEndByThemselves(t *testing.T) {
	run, envoy := readUnit(t, agentUnit), readUnit(t, envoyUnit)
	for _, u := range []unit{run, envoy} {
		if mode := u.last("Service", "KillMode"); mode != "" && mode != "control-group" {
			t.Errorf("KillMode=%s leaves processes behind", mode)
		}
		for _, key := range []string{"PartOf", "BindsTo", "Requires", "Requisite"} {
			if value := u.last("Unit", key); value != "" {
				t.Errorf("%s=%s: when systemd starts one again by itself it would start the other again too", key, value)
			}
		}
	}
	envoy.has(
		t, "Unit", "StopPropagatedFrom", agentUnit,
		"tunnels must end when somebody stops the agent's unit, also if no agent runs",
	)
	for _, key := range []string{"Wants", "After"} {
		units := strings.Fields(run.last("Unit", key))
		if !slices.Contains(units, envoyUnit) || !slices.Contains(units, "network-online.target") {
			t.Errorf("%s= is %q: Envoy must be started with the agent, and stopped after it", key, units)
		}
	}
}

func TestTheUnitOfEnvoyFitsTheAgent(t *testing.T) {
	u := readUnit(t, envoyUnit)
	dir := "/run/" + u.last("Service", "RuntimeDirectory")
	u.has(t, "Service", "WorkingDirectory", dir, "sockets are named relative to it")
	if got, want := strings.Fields(u.last("Service", "ExecStart")), append([]string{"/usr/local/bin/envoy"},
		envoyproc.ExternalArguments()...); !slices.Equal(
		got,
		want,
	) {
		t.Errorf("Envoy is started with %q, want %q", got, want)
	}
	// The file that an agent wrote must stay: the agent restarts Envoy to make it read the file.
	want := "/bin/sh -c 'test -s " + envoyproc.BootstrapFileName + " || exec /usr/local/bin/edge-agent bootstrap " +
		"--state-dir=" + dir + "'"
	u.has(t, "Service", "ExecStartPre", want, "the first Envoy needs a bootstrap")
}

// last returns the effective value of a setting that is given several times, or "" if it is not given.
func (u unit) last(section, key string) string {
	values := u[section][key]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

func (u unit) has(t *testing.T, section, key, value, why string) {
	t.Helper()
	if got, ok := u[section][key]; !ok || u.last(section, key) != value {
		t.Errorf("%s= is %q, want %q: %s", key, got, value, why)
	}
}
