package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	running   = reportv1.BootState_BOOT_STATE_RUNNING
	succeeded = reportv1.BootState_BOOT_STATE_SUCCEEDED
	failed    = reportv1.BootState_BOOT_STATE_FAILED
)

func TestObserve(t *testing.T) {
	tests := map[string]struct {
		make    func(*machine)
		late    bool
		state   reportv1.BootState
		step    string
		message string // a part of it
		tail    string // a part of it
	}{
		"nothing yet":       {make: func(*machine) {}, state: running, step: "before kubeadm"},
		"cloud-init begins": {make: func(m *machine) { m.cloud("init") }, state: running, step: "cloud-init init"},
		"half a status": {
			make:  func(m *machine) { m.write(cloudStatusPath, `{"v1": {"stage": "in`) },
			state: running,
			step:  "before kubeadm",
		},
		"kubeadm runs": {
			make:  func(m *machine) { m.cloud("modules-final"); m.write(cloudLogPath, logBegin+logPreflight) },
			state: running, step: "kubeadm preflight",
		},
		"it waits for the kubelet, which is no phase of its own": {
			make: func(m *machine) {
				m.cloud("modules-final")
				m.write(cloudLogPath, logBegin+strings.Split(logJoined, "\nThis node")[0])
			},
			state: running, step: "kubeadm kubelet-start",
		},
		"it has joined, and what follows runs": {
			make:  func(m *machine) { m.cloud("modules-final"); m.write(cloudLogPath, logBegin+logJoined); m.succeed() },
			state: running, step: "after kubeadm",
		},
		"all is done": {
			make:  func(m *machine) { m.cloud(""); m.write(cloudLogPath, logBegin+logJoined); m.succeed() },
			state: succeeded, step: "bootstrapped",
		},
		"it has joined, and a module of cloud-init failed": {
			make:  func(m *machine) { m.cloud("", "ntp is missing"); m.succeed() },
			state: succeeded, step: "bootstrapped", message: "cloud-init reports errors in modules-final: ntp is missing",
		},
		"preflight fails": {
			make: func(m *machine) {
				m.cloud("", scriptsError)
				m.write(cloudLogPath, logBegin+logPortInUse+logScripts)
			},
			state: failed, step: "kubeadm preflight",
			message: "[ERROR Port-6443]: Port 6443 is in use [ERROR NumCPU]", tail: "Port 6443 is in use\n",
		},
		"preflight fails, and later commands continue": {
			make:  func(m *machine) { m.cloud("modules-final"); m.write(cloudLogPath, logBegin+logPortInUse) },
			state: failed, step: "kubeadm preflight", message: "Port 6443",
		},
		"it tries again": {
			make:  func(m *machine) { m.cloud("modules-final"); m.write(cloudLogPath, logBegin+logPortInUse+logPreflight) },
			state: running, step: "kubeadm preflight", // its advice begins with [preflight] too
		},
		"it tries again, and gets further": {
			make: func(m *machine) {
				m.cloud("modules-final")
				m.write(
					cloudLogPath, logBegin+logPortInUse+logPreflight+"[certs] Using certificateDir folder \"/etc/kubernetes/pki\"\n",
				)
			},
			state: running, step: "kubeadm certs",
		},
		"an error in a phase of a phase": {
			make: func(m *machine) {
				m.cloud("")
				m.write(
					cloudLogPath,
					logBegin+logPreflight+"error execution phase control-plane-prepare/download-certs: secret kubeadm-certs not "+
						"found\n",
				)
			},
			state: failed, step: "kubeadm control-plane-prepare/download-certs", message: "secret kubeadm-certs not found",
		},
		"there is no kubeadm": {
			make: func(m *machine) {
				m.cloud("", scriptsError)
				m.write(cloudLogPath, logBegin+"/var/lib/cloud/instance/scripts/runcmd: 5: kubeadm: not found\n"+logScripts)
			},
			state: failed, step: "kubeadm", message: "kubeadm: not found",
		},
		"a command before kubeadm ends the script": {
			make: func(m *machine) {
				m.cloud("", scriptsError)
				m.write(cloudLogPath, logBegin+"curl: (6) Could not resolve host: repo.example.com\n"+logScripts)
			},
			state: failed, step: "cloud-init modules-final", message: "Runparts: 1 failures", tail: "Could not resolve host",
		},
		"a command before kubeadm ends it with 0": {
			make:  func(m *machine) { m.cloud(""); m.write(cloudLogPath, logBegin) },
			state: failed, step: "before kubeadm", message: "kubeadm has not begun",
		},
		"kubeadm is killed": {
			make:  func(m *machine) { m.cloud("", scriptsError); m.write(cloudLogPath, logBegin+logPreflight+"Killed\n") },
			state: failed, step: "kubeadm preflight", message: "kubeadm has not succeeded", tail: "Killed",
		},
		"it hangs": {
			make:    func(m *machine) { m.cloud("modules-final"); m.write(cloudLogPath, logBegin+logPreflight) },
			late:    true,
			state:   failed,
			step:    "kubeadm preflight",
			message: "not ended within 30m0s",
		},
		"without cloud-init it hangs": {
			make:    func(*machine) {},
			late:    true,
			state:   failed,
			step:    "before kubeadm",
			message: "/run/cluster-api/bootstrap-success.complete does not exist",
		},
		"Ignition has no status": {make: (*machine).succeed, state: succeeded, step: "bootstrapped"},
		"a later boot": {
			make: func(m *machine) {
				m.cloud("")
				m.write(kubeletConfPath, "kind: Config\n")
				old := time.Unix(1600000000, 0)
				if err := os.Chtimes(filepath.Join(m.root, kubeletConfPath), old, old); err != nil {
					m.t.Fatal(err)
				}
			},
			state: succeeded, step: "bootstrapped in an earlier boot",
		},
		"the log of an earlier boot does not count": {
			make:  func(m *machine) { m.cloud("init-local"); m.write(cloudLogPath, logBegin+logPortInUse+logBegin) },
			state: running, step: "cloud-init init-local",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			tc.make(m)
			r := New(Config{Root: m.root})
			now := r.began
			r.now = func() time.Time { return now }
			if tc.late {
				now = now.Add(r.Deadline)
			}
			r.Observe(t.Context())
			now = now.Add(r.pace.grace)
			got := r.Observe(t.Context())
			if got.GetState() != tc.state || got.GetStep() != tc.step || !strings.Contains(got.GetMessage(), tc.message) ||
				!strings.Contains(got.GetTail(), tc.tail) {
				t.Errorf("got %s, step %q, message %q, tail:\n%s", got.GetState(), got.GetStep(), got.GetMessage(), got.GetTail())
			}
			if tc.state != failed && got.GetTail() != "" {
				t.Errorf("a log is sent without need: %q", got.GetTail())
			}
		})
	}
}

func TestAFailureMustPersist(t *testing.T) {
	m := newMachine(t)
	m.cloud("") // and the sentinel appears a moment later
	r := New(Config{Root: m.root})
	now := r.began
	r.now = func() time.Time { return now }
	if got := r.Observe(t.Context()); got.GetState() != running {
		t.Errorf("got %s at once", got.GetState())
	}
	m.succeed()
	now = now.Add(r.pace.grace)
	if got := r.Observe(t.Context()); got.GetState() != succeeded {
		t.Errorf("got %s", got.GetState())
	}
}

func TestReportsAreSmallAndHaveNoSecrets(t *testing.T) {
	m := newMachine(t)
	m.cloud("", scriptsError)
	const token = "abcdef.0123456789abcdef"
	long := strings.Repeat("some line of a log, with a token "+token+" in it\n", 20_000)
	m.write(
		cloudLogPath,
		logBegin+long+"[preflight] Running\nerror execution phase preflight: couldn't validate the identity of the API "+
			"Server with token "+token+"\n"+strings.Repeat(
			"\x00\xff\u2028é",
			9000,
		),
	)
	r := New(Config{Root: m.root, pace: pace{grace: -1}})
	r.Observe(t.Context())
	got := r.Observe(t.Context())
	if got.GetState() != failed || len(got.GetTail()) > report.MaxBootTail || len(got.GetTail()) < report.MaxBootTail/2 {
		t.Errorf("%s with a tail of %d bytes", got.GetState(), len(got.GetTail()))
	}
	if strings.Contains(got.GetTail()+got.GetMessage(), token[7:]) {
		t.Error("the token is in it")
	}
	if strings.ContainsAny(got.GetTail(), "\x00\u2028") {
		t.Error("what can't be printed is in it")
	}
}

// TestASecretThatIsCutInHalf has secrets on both sides of the beginning and the end of the tail.
func TestASecretThatIsCutInHalf(t *testing.T) {
	const half = "hunter2hunter2 "
	log := "password: |\n" + strings.Repeat("  "+half+"\n", 10*report.MaxBootTail/len(half)) + "b: c\n"
	failure := "error execution phase preflight: no\n"
	for name, text := range map[string]string{
		"at the beginning": log + strings.Repeat("a line\n", 10) + failure,
		"at the end": failure + strings.Repeat("x", afterError-20) + " abcdef." + strings.Repeat("0123456789abcdef ",
			3) + "\n",
	} {
		got := observation{kubeadm: parseKubeadm(text), log: text}.tail()
		if strings.Contains(got, "hunter2") || strings.Contains(got, "abcdef.01") ||
			!strings.Contains(got, "execution phase") {
			t.Errorf("%s: %d bytes are sent: %.200q ... %q", name, len(got), got, got[max(0, len(got)-100):])
		}
	}
}

func TestTheMachineReportsItsIdentifiers(t *testing.T) {
	m := newMachine(t)
	m.write(kubeletArgsPath, `KUBELET_KUBEADM_ARGS="--node-ip=10.0.0.1 --provider-id=aws:///eu/i-123 --v=2"`)
	got := New(Config{Root: m.root}).machine()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got.GetHostname() != host || got.GetProviderId() != "aws:///eu/i-123" ||
		got.GetMachineId() != "0123456789abcdef0123456789abcdef" ||
		got.GetSystemUuid() != "4c4c4544-0051-3510-8052-b4c04f4e4732" {
		t.Errorf("got %v", got)
	}
	m.write("etc/machine-id", "uninitialized\n")
	m.write("sys/class/dmi/id/product_uuid", "Not Specified\n")
	if got := New(Config{Root: m.root, ProviderID: "x://1"}).machine(); got.GetMachineId() != "" ||
		got.GetSystemUuid() != "" ||
		got.GetProviderId() != "x://1" {
		t.Errorf("got %v", got)
	}
}

// FuzzObserve reads arbitrary files of a broken machine: a report is always returned, of an accepted size.
func FuzzObserve(f *testing.F) {
	f.Add(`{"v1":{"stage":null,"modules-final":{"start":1e300,"finished":-1,"errors":["x"]}}}`, logBegin+logPortInUse)
	f.Add(`{"v1":{"stage":7,"init":[]}}`, "error execution phase x: \n[ERROR \n[preflight] ")
	f.Add("", logJoined)
	f.Fuzz(func(t *testing.T, status, log string) {
		p := observation{cloud: parseCloudInit([]byte(status)), kubeadm: parseKubeadm(thisBoot(log)), log: thisBoot(log)}
		got := p.report()
		if got.GetStep() == "" || len(got.GetMessage()) > maxMessage || len(got.GetTail()) > report.MaxBootTail {
			t.Errorf("%v", got)
		}
	})
}
