package boot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// machine is a directory with the files of a machine.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t, t.TempDir()}
	m.write("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
	m.write("proc/uptime", "12.34 40.00\n")
	m.write("proc/stat", "cpu 1 2 3\nbtime 1700000000\n")
	m.write("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
	m.write("sys/class/dmi/id/product_uuid", "4C4C4544-0051-3510-8052-B4C04F4E4732\n")
	return m
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) append(name, content string) {
	m.t.Helper()
	old, _ := os.ReadFile(filepath.Join(m.root, name)) // it may not exist
	m.write(name, string(old)+content)
}

// cloud writes cloud-init's status: its stages up to the running one, or all if running is empty.
func (m *machine) cloud(running string, errors ...string) {
	m.t.Helper()
	var stages []string
	begun := true
	for i, name := range cloudStages {
		start, finished, errs := "null", "null", "[]"
		if begun {
			start = fmt.Sprintf("17000000%02d.5", i*10)
			if name != running {
				finished = fmt.Sprintf("17000000%02d.25", i*10+9)
			}
		}
		if name == running {
			begun = false
		}
		if name == "modules-final" && len(errors) > 0 {
			errs = `["` + strings.Join(errors, `","`) + `"]`
		}
		stages = append(
			stages,
			fmt.Sprintf(
				`%q: {"errors": %s, "finished": %s, "recoverable_errors": {}, "start": %s}`,
				name,
				errs,
				finished,
				start,
			),
		)
	}
	stage := "null"
	if running != "" {
		stage = `"` + running + `"`
	}
	m.write(
		cloudStatusPath,
		fmt.Sprintf(`{"v1": {"datasource": "DataSourceNoCloud", %s, "stage": %s}}`, strings.Join(stages, ", "), stage),
	)
}

func (m *machine) succeed() { m.write(sentinelPath, "success\n") }

// server accepts or rejects reports.
type server struct {
	mu     sync.Mutex
	got    []*reportv1.BootReport
	err    error
	answer enrolclient.Answer
	wake   chan struct{}
}

func newServer() *server { return &server{wake: make(chan struct{}, 1000)} }

func (s *server) send(_ context.Context, r *reportv1.BootReport) (enrolclient.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake <- struct{}{}
	if s.err != nil {
		return enrolclient.Answer{}, s.err
	}
	s.got = append(s.got, r)
	return s.answer, nil
}

func (s *server) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *server) last() *reportv1.BootReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) == 0 {
		return nil
	}
	return s.got[len(s.got)-1]
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// quick is a pace for tests.
var quick = pace{
	poll: time.Millisecond, grace: 20 * time.Millisecond,
	repeat: retry.Backoff{
		Min: 5 * time.Millisecond,
		Max: 20 * time.Millisecond,
	}, retry: retry.Backoff{Min: time.Millisecond, Max: 4 * time.Millisecond},
}

// Logs in the format of cloud-init, sh and kubeadm.
const (
	logBegin = "Cloud-init v. 24.4 running 'init-local' at Tue, 14 Nov 2023 22:13:21 +0000. Up 5.12 seconds.\n" +
		"Cloud-init v. 24.4 running 'init' at Tue, 14 Nov 2023 22:13:25 +0000. Up 9.10 seconds.\n" +
		"Cloud-init v. 24.4 running 'modules:config' at Tue, 14 Nov 2023 22:13:40 +0000. Up 24.00 seconds.\n" +
		"Cloud-init v. 24.4 running 'modules:final' at Tue, 14 Nov 2023 22:13:50 +0000. Up 34.00 seconds.\n"
	logPreflight = "[preflight] Running pre-flight checks\n"
	logJoined    = logPreflight + "[preflight] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace " +
		"\"kube-system\"...\n" +
		"[kubelet-start] Writing kubelet configuration to file \"/var/lib/kubelet/config.yaml\"\n[kubelet-start] Starting " +
		"the kubelet\n" +
		"[kubelet-check] Waiting for a healthy kubelet at http://127.0.0.1:10248/healthz. This can take up to 4m0s\n\nThis " +
		"node has joined the cluster:\n* Certificate signing request was sent\n"
	logPortInUse = "[init] Using Kubernetes version: v1.34.1\n" + logPreflight +
		"error: error execution phase preflight: [preflight] Some fatal errors occurred:\n\t[ERROR Port-6443]: Port 6443 " +
		"is in use\n\t[ERROR NumCPU]: the number of available CPUs 1 is less than the required 2\n" +
		"[preflight] If you know what you are doing, you can make a check non-fatal with " +
		"`--ignore-preflight-errors=...`\nTo see the stack trace of this error execute with --v=5 or higher\n"
	logScripts = "2023-11-14 22:15:00,000 - cc_scripts_user.py[WARNING]: Failed to run module scripts-user (scripts in " +
		"/var/lib/cloud/instance/scripts)\n" +
		"2023-11-14 22:15:00,001 - util.py[WARNING]: Running module scripts-user (<module " +
		"'cloudinit.config.cc_scripts_user' from '/usr/lib/python3/dist-packages/cloudinit/config/cc_scripts_user.py'>) " +
		"failed\n"
	scriptsError = "('scripts_user', RuntimeError('Runparts: 1 failures (runcmd) in 1 attempted commands'))"
)
