package edge_test

import (
	"strings"
	"testing"
)

func TestTheUnitOfBootReports(t *testing.T) {
	u := readUnit(t, "fairlead-report.service")
	for _, want := range []struct{ section, key, value, why string }{
		{"Unit", "ConditionPathExists", "!/var/lib/fairlead-report/done", "a later boot is not another bootstrap"},
		{"Service", "Restart", "on-failure", "it ends by itself when all is told"},
		{"Service", "RestartPreventExitStatus", "1", "flags that can't be stay so"},
		{"Service", "CapabilityBoundingSet", "", "it reads root's files and needs nothing else"},
		{"Service", "NoNewPrivileges", "yes", "it must not get any"},
		{"Service", "ProtectSystem", "strict", "it writes one file"},
		{"Service", "StateDirectory", "fairlead-report", "not the edge's, whose owner is another"},
		{"Install", "WantedBy", "multi-user.target", "it must start with the machine"},
	} {
		u.has(t, want.section, want.key, want.value, want.why)
	}
	for _, key := range []string{"After", "Before", "Requires", "Wants"} {
		if value := u.last("Unit", key); value != "" {
			t.Errorf("%s=%s: it must neither wait for the boot nor hold it up", key, value)
		}
	}
	if u.last("Service", "MemoryMax") == "" || u.last("Service", "Type") == "oneshot" ||
		u.last("Service", "Type") == "notify" {
		t.Error("it must not be in the way of the boot")
	}
	command := u.last("Service", "ExecStart")
	if !strings.HasPrefix(command, "/usr/local/bin/edge-agent report ") ||
		!strings.Contains(command, "--done-file=/var/lib/"+u.last("Service", "StateDirectory")+"/done") {
		t.Errorf("command %q", command)
	}
}
