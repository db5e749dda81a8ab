package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// site is a network of machines on one bridge, each with its own network namespace.
type site struct {
	t      *testing.T
	bin    string // the real parts, and this program
	prefix string
	dir    string
	pki    string
}

// newSite skips the test without root or without the real parts.
func newSite(t *testing.T) *site {
	t.Helper()
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	missing := ""
	for _, name := range []string{"machine", "kubeadm", "kubectl", "kube-apiserver", "kube-controller-manager", "etcd"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			missing = name
		}
	}
	if os.Getuid() != 0 || missing != "" {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("want root and the real parts (make tools); missing: %q", missing)
		}
		t.Skipf("needs root and the real parts (make tools); missing: %q", missing)
	}
	s := &site{t: t, bin: bin, prefix: fmt.Sprintf("machine-%d-", os.Getpid()), dir: t.TempDir()}
	if own := os.Getenv("MACHINE"); own != "" {
		s.bin = filepath.Join(s.dir, "bin")
		s.must("cp", "-a", bin+"/.", s.bin)
		s.must("ln", "-sfn", own, filepath.Join(s.bin, "machine"))
	}
	bridge := s.prefix + "net"
	s.must("ip", "netns", "add", bridge)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", bridge).Run() })
	s.in(bridge, "ip", "link", "add", "br0", "type", "bridge")
	s.in(bridge, "ip", "addr", "add", "10.77.0.254/24", "dev", "br0")
	s.in(bridge, "ip", "link", "set", "br0", "up")
	s.makeCAs()
	return s
}

// must runs a command that has to succeed and returns its output.
func (s *site) must(name string, args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// in runs a command in a network namespace.
func (s *site) in(ns string, args ...string) string {
	s.t.Helper()
	return s.must("ip", append([]string{"netns", "exec", ns}, args...)...)
}

func (s *site) makeCAs() {
	s.t.Helper()
	s.pki = filepath.Join(s.dir, "pki")
	for _, what := range []string{"ca", "etcd-ca", "front-proxy-ca", "sa"} {
		s.must(filepath.Join(s.bin, "kubeadm"), "init", "phase", "certs", what, "--cert-dir", s.pki)
	}
}

// host is one machine of the site.
type host struct {
	site          *site
	name, address string
	dir           string
	cmd           *exec.Cmd
	ended         chan error
}

func (s *site) newHost(name, address string) *host {
	s.t.Helper()
	ns := s.prefix + name
	s.must("ip", "netns", "add", ns)
	s.t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", ns).Run() })
	bridge := s.prefix + "net"
	s.in(bridge, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", ns)
	s.in(bridge, "ip", "link", "set", name, "master", "br0", "up")
	s.in(ns, "ip", "link", "set", "lo", "up")
	s.in(ns, "ip", "addr", "add", address+"/24", "dev", "eth0")
	s.in(ns, "ip", "link", "set", "eth0", "up")
	s.in(ns, "ip", "route", "add", "default", "via", "10.77.0.254")
	return &host{site: s, name: name, address: address, dir: filepath.Join(s.dir, name)}
}

// boot starts the machine.
func (h *host) boot(userData string) {
	t := h.site.t
	t.Helper()
	file := filepath.Join(h.site.dir, h.name+".user-data")
	if err := os.WriteFile(file, []byte(userData), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"netns", "exec", h.site.prefix + h.name, filepath.Join(h.site.bin, "machine"), "run", "--dir", h.dir,
		"--hostname", h.name, "--address", h.address, "--user-data", file, "--provider-id", "test:///" + h.name,
	}
	for _, name := range []string{"kubeadm", "kubectl", "kube-apiserver", "kube-controller-manager", "etcd"} {
		args = append(args, "--program", name+"="+filepath.Join(h.site.bin, name))
	}
	log, err := os.Create(filepath.Join(h.site.dir, h.name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	h.cmd = exec.Command("ip", args...)
	h.cmd.Stdout, h.cmd.Stderr = log, log
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.ended = make(chan error, 1)
	go func() { h.ended <- h.cmd.Wait(); _ = log.Close() }()
	t.Cleanup(func() {
		if t.Failed() {
			h.printLogs()
		}
		h.off()
	})
}

// off switches the machine off and waits until it has stopped.
func (h *host) off() {
	if h.cmd == nil {
		return
	}
	t := h.site.t
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-h.ended:
		if err != nil {
			t.Errorf("machine %s: %v", h.name, err)
		}
	case <-time.After(time.Minute):
		_ = h.cmd.Process.Kill()
		t.Errorf("machine %s does not stop", h.name)
	}
	h.cmd = nil
	if pids, err := exec.Command("ip", "netns", "pids", h.site.prefix+h.name).Output(); err != nil || len(pids) > 0 {
		t.Errorf("machine %s has left processes: %s %v", h.name, pids, err)
	}
}

// printLogs prints the logs.
func (h *host) printLogs() {
	for _, path := range []string{filepath.Join(h.site.dir, h.name+".log"), h.file("/var/log/cloud-init-output.log")} {
		data, _ := os.ReadFile(path)
		h.site.t.Logf("%s:\n%s", path, data[max(0, len(data)-6000):])
	}
}

func (h *host) file(path string) string { return filepath.Join(h.dir, "disk", path) }

// kubectl runs kubectl in the machine's network, with its admin kubeconfig.
func (h *host) kubectl(ctx context.Context, args ...string) (string, error) {
	all := append([]string{
		"netns", "exec", h.site.prefix + h.name, filepath.Join(h.site.bin, "kubectl"), "--kubeconfig",
		h.file("/etc/kubernetes/admin.conf"),
	}, args...)
	out, err := exec.CommandContext(ctx, "ip", all...).CombinedOutput()
	return string(out), err
}

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

const bootToken = "abcdef.0123456789abcdef"

// files returns a write_files section with the files that Cluster API's bootstrap provider gives to a control plane.
func (s *site) files(names ...string) string {
	s.t.Helper()
	text := "write_files:\n"
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(s.pki, name))
		if err != nil {
			s.t.Fatal(err)
		}
		text += file("/etc/kubernetes/pki/"+name, "0600", string(data))
	}
	return text
}

func (s *site) initData(endpoint string) string {
	kubeadm := fmt.Sprintf(`---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.1
clusterName: site
controlPlaneEndpoint: %s
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens:
- token: %s
nodeRegistration:
  name: '{{ ds.meta_data.local_hostname }}'
  ignorePreflightErrors: [all]
`, endpoint, bootToken)
	return "## template: jinja\n#cloud-config\n\n" + s.files(controlPlaneFiles...) +
		file("/run/kubeadm/kubeadm.yaml", "0640", kubeadm) + file("/run/cluster-api/placeholder", "0640", "x") + `runcmd:
  - "echo before kubeadm"
  - 'kubeadm init --config /run/kubeadm/kubeadm.yaml && echo success > /run/cluster-api/bootstrap-success.complete'
`
}

func (s *site) joinData(endpoint string, controlPlane bool) string {
	kubeadm := fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken:
    apiServerEndpoint: %s
    token: %s
    unsafeSkipCAVerification: true
nodeRegistration:
  name: '{{ ds.meta_data.local_hostname }}'
  ignorePreflightErrors: [all]
`, endpoint, bootToken)
	names := []string{}
	if controlPlane {
		kubeadm += "controlPlane: {}\n"
		names = controlPlaneFiles
	}
	return "## template: jinja\n#cloud-config\n\n" + s.files(names...) +
		file(
			"/run/kubeadm/kubeadm-join-config.yaml", "0640", kubeadm,
		) + file("/run/cluster-api/placeholder", "0640", "x") + `runcmd:
  - kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml && echo success > /run/cluster-api/bootstrap-success.complete
`
}

// booted waits until cloud-init has finished and checks that it has succeeded.
func (h *host) booted(limit time.Duration) {
	h.site.t.Helper()
	eventually(h.site.t, h.name+" has booted", limit, func(context.Context) error {
		_, err := os.Stat(h.file("/var/lib/cloud/instance/boot-finished"))
		if err != nil { // the link is absolute on the machine
			_, err = os.Stat(h.file("/var/lib/cloud/instances/" + h.name + "/boot-finished"))
		}
		return err
	})
	var result struct{ V1 struct{ Errors []string } }
	data, err := os.ReadFile(h.file("/var/lib/cloud/data/result.json"))
	if err == nil {
		err = json.Unmarshal(data, &result)
	}
	if err != nil || len(result.V1.Errors) > 0 {
		h.site.t.Fatalf("%s: cloud-init: %v %v", h.name, err, result.V1.Errors)
	}
	if _, err := os.Stat(h.file("/run/cluster-api/bootstrap-success.complete")); err != nil {
		h.site.t.Fatalf("%s: kubeadm: %v", h.name, err)
	}
}

func (h *host) nodesReady(count int) {
	h.site.t.Helper()
	eventually(h.site.t, fmt.Sprintf("%d Nodes are ready", count), 2*time.Minute, func(ctx context.Context) error {
		out, err := h.kubectl(
			ctx, "get", "nodes", "-o",
			"jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=='Ready')].status} {end}",
		)
		if err != nil || strings.Count(out, "=True") != count {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
}
