package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/fairlead/fairlead/test/lab/proc"
)

// systemctl stands in for systemd, which is not the first process of a machine. It records how it is called.
const systemctl = "#!/bin/sh\necho \"$@\" >>/run/systemctl\n"

// InstallPrograms copies programs to /usr/local/bin of the machine, which each user of the machine may run. It adds a
// systemctl, whose calls SystemctlCalls returns.
func (m *Machine) InstallPrograms(ctx context.Context, programs ...string) error {
	_, err := m.Run(ctx, systemctl, "sh", "-eu", "-c", "cd /usr/local/bin; cat >systemctl; chmod 0755 systemctl; "+
		"install -m 0755 "+strings.Join(programs, " ")+" .")
	return err
}

// SystemctlCalls returns the arguments with which systemctl was called, a line for each call.
func (m *Machine) SystemctlCalls(ctx context.Context) (string, error) {
	calls, err := m.Run(ctx, "", "cat", "/run/systemctl")
	return string(calls), err
}

// readEnvironment reads a file with lines NAME=VALUE, if it exists.
const readEnvironment = `if test -e %[1]s; then while IFS= read -r line; do export "$line"; done <%[1]s; fi
`

// StartUnit runs a unit of systemd that a command has installed on the machine: its ExecStartPre and ExecStart as its
// user, in its working directory, with its folders and its environment file, and again whenever it ends. Limits and
// sandboxing of the unit have no effect.
func (m *Machine) StartUnit(name string) (*proc.Service, error) {
	data, err := os.ReadFile(m.File("/etc/systemd/system/" + name + ".service"))
	if err != nil {
		return nil, fmt.Errorf("reading the unit %s of %s: %w", name, m.Name, err)
	}
	unit, environment := map[string]string{}, ""
	for line := range strings.Lines(string(data)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(key, "#") {
			unit[key] = value
			if file := strings.TrimPrefix(value, "-"); key == "EnvironmentFile" {
				environment += fmt.Sprintf(readEnvironment, file)
			}
		}
	}
	if unit["User"] != "fairlead" || unit["ExecStart"] == "" || unit["RuntimeDirectory"] == "" {
		return nil, fmt.Errorf("the unit %s of %s is\n%s", name, m.Name, data)
	}
	folders := "/run/" + unit["RuntimeDirectory"]
	if state := unit["StateDirectory"]; state != "" {
		folders += " /var/lib/" + state
	}
	run := fmt.Sprintf("umask %s\ncd %s\n%s%s\nexec %s\n", unit["UMask"], cmp.Or(unit["WorkingDirectory"], "/"),
		environment, unit["ExecStartPre"], unit["ExecStart"])
	script := fmt.Sprintf(`install -d -m 0700 -o fairlead -g fairlead %s
exec setpriv --reuid=fairlead --regid=fairlead --clear-groups --no-new-privs --inh-caps=-all sh -e -c "$0"`, folders)
	return m.Supervise(name, "sh", "-e", "-c", script, run)
}
