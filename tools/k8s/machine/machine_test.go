package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMachines makes a cluster of three control-plane machines and a worker with the real kubeadm.
func TestMachines(t *testing.T) {
	s := newSite(t)
	first := s.newHost("cp1", "10.77.0.1")
	endpoint := net.JoinHostPort(first.address, "6443")
	first.boot(s.initData(endpoint))
	first.booted(5 * time.Minute)
	first.nodesReady(1)
	all := []*host{first}
	for i, name := range []string{"cp2", "cp3", "worker"} {
		h := s.newHost(name, fmt.Sprintf("10.77.0.%d", i+2))
		h.boot(s.joinData(endpoint, name != "worker"))
		h.booted(5 * time.Minute)
		all = append(all, h)
	}
	first.nodesReady(len(all))
	eventually(t, "Pods of the control plane are ready", time.Minute, func(ctx context.Context) error {
		out, err := first.kubectl(ctx, "get", "pods", "-n", "kube-system", "-l", "tier=control-plane", "-o",
			"jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=='Ready')].status} {end}")
		if err != nil || strings.Count(out, "=True") != 12 {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
	out, err := first.kubectl(t.Context(), "get", "nodes", "-o", "jsonpath={.items[*].spec.providerID}")
	if err != nil || out != "test:///cp1 test:///cp2 test:///cp3 test:///worker" {
		t.Errorf("provider ids: %s %v", out, err)
	}
	t.Run("exec", func(t *testing.T) { checkExec(t, first) })
	t.Run("logs", func(t *testing.T) {
		out, err := first.kubectl(t.Context(), "logs", "-n", "kube-system", "etcd-cp2")
		if err != nil || !strings.Contains(out, "etcd") {
			t.Errorf("logs of etcd: %v %.200s", err, out)
		}
	})
	t.Run("port-forward", func(t *testing.T) { checkForward(t, first, "etcd-cp3") })
	t.Run("restart", func(t *testing.T) { checkRestart(t, all[2]) })
	t.Run("manifest", func(t *testing.T) { checkManifest(t, first, all[3]) })
	for _, h := range all {
		h.off()
	}
}

func checkExec(t *testing.T, h *host) {
	t.Helper()
	out, err := h.kubectl(
		t.Context(), "exec", "-n", "kube-system", "kube-apiserver-cp2", "--", "sh", "-c", "hostname; exit 3",
	)
	if !strings.Contains(out, "cp2\n") || !strings.Contains(out, "exit code 3") || err == nil {
		t.Errorf("exec: %q %v", out, err)
	}
}

// checkForward reaches etcd's metrics, which listen only on the other machine's 127.0.0.1. They must show two other
// members.
func checkForward(t *testing.T, h *host, pod string) {
	t.Helper()
	cmd := exec.CommandContext(
		t.Context(), "ip", "netns", "exec", h.site.prefix+h.name, filepath.Join(h.site.bin, "kubectl"), "--kubeconfig",
		h.file("/etc/kubernetes/admin.conf"), "port-forward", "-n", "kube-system", "pod/"+pod, "12381:2381",
	)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	peers := regexp.MustCompile(`(?m)^etcd_network_active_peers\{.*\} 1$`)
	eventually(t, "etcd answers through port-forward", 20*time.Second, func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "ip", "netns", "exec", h.site.prefix+h.name, "curl", "-sS",
			"http://127.0.0.1:12381/metrics").
			CombinedOutput()
		if found := peers.FindAll(out, -1); err != nil || len(found) != 2 {
			return fmt.Errorf("want 2 peers, got %s %w", found, err)
		}
		return nil
	})
}

// checkRestart kills a container and waits for the next one.
func checkRestart(t *testing.T, h *host) {
	t.Helper()
	if out, err := h.kubectl(t.Context(), "exec", "-n", "kube-system", "kube-controller-manager-"+h.name, "--", "pkill",
		"-f", "^kube-controller-manager "); err != nil {
		t.Fatalf("killing: %v %s", err, out)
	}
	eventually(t, "kube-controller-manager has started again", time.Minute, func(ctx context.Context) error {
		out, err := h.kubectl(ctx, "get", "pod", "-n", "kube-system", "kube-controller-manager-"+h.name, "-o",
			"jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
		if err != nil || out != "1 true" {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
}

// checkManifest runs a static Pod with volumes at other paths, changes it and removes it.
func checkManifest(t *testing.T, first, h *host) {
	t.Helper()
	manifest := `apiVersion: v1
kind: Pod
metadata: {name: talker, namespace: kube-system}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  securityContext: {runAsUser: 65532, runAsGroup: 65532}
  containers:
  - name: talker
    image: example.org/talker:1
    command: [sh, -c, 'echo "$(NODE) is $(id -u)" > /scratch/said; cp /data/in /scratch/in; sleep 1000']
    env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: data, mountPath: /data, readOnly: true}]
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: data, hostPath: {path: /var/lib/talker, type: Directory}}
`
	path := h.file("/etc/kubernetes/manifests/talker.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	// The Pod waits for its volume.
	if err := os.MkdirAll(h.file("/var/lib/talker"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.file("/var/lib/talker/in"), []byte("from the machine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the static Pod runs", time.Minute, func(ctx context.Context) error {
		out, err := first.kubectl(
			ctx, "exec", "-n", "kube-system", "talker-"+h.name, "--", "cat", "/scratch/said", "/scratch/in",
		)
		if err != nil || !strings.Contains(out, h.name+" is 65532\nfrom the machine") {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the static Pod is removed", time.Minute, func(ctx context.Context) error {
		out, err := first.kubectl(ctx, "get", "pod", "-n", "kube-system", "talker-"+h.name)
		if err == nil || !strings.Contains(out, "NotFound") {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
}

// checkStatus reads cloud-init's status after a runcmd that has failed.
func checkStatus(t *testing.T, h *host) {
	t.Helper()
	var status struct {
		V1 struct {
			Final struct {
				Errors   []string
				Finished float64
			} `json:"modules-final"`
			Stage *string
		}
	}
	text, err := os.ReadFile(h.file("/var/lib/cloud/data/status.json"))
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	want := "('scripts_user', RuntimeError('Runparts: 1 failures (runcmd) in 1 attempted commands'))"
	if got := status.V1; err != nil || got.Stage != nil || got.Final.Finished == 0 || len(got.Final.Errors) != 1 ||
		got.Final.Errors[0] != want {
		t.Errorf("status.json: %v\n%s", err, text)
	}
}

// checkPowerLoss kills the program and waits until all others have exited.
func checkPowerLoss(t *testing.T, h *host) {
	t.Helper()
	// ip has executed the program in its place.
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.ended
	h.cmd = nil
	eventually(t, "no process is left", 10*time.Second, func(ctx context.Context) error {
		pids, err := exec.CommandContext(ctx, "ip", "netns", "pids", h.site.prefix+h.name).Output()
		if err != nil || len(pids) > 0 {
			return fmt.Errorf("%q %w", pids, err)
		}
		return nil
	})
}

// TestBoots lets a machine fail, boot again and lose its power.
func TestBoots(t *testing.T) {
	s := newSite(t)
	h := s.newHost("lone", "10.77.0.9")
	data := `## template: jinja
#cloud-config
write_files:
- {path: /opt-of-lone/file, content: "on {{ ds.meta_data.local_hostname }}", permissions: '0600'}
bootcmd: ["echo boot >> /var/lib/boots"]
runcmd: ["hostname >> /var/lib/ran", "sleep 1000 &", "systemctl is-active kubelet", "exit 7"]
`
	finished := func(boots int) func(context.Context) error {
		return func(context.Context) error {
			found, err := os.ReadFile(h.file("/var/lib/boots"))
			if err != nil || strings.Count(string(found), "boot\n") != boots {
				return fmt.Errorf("boots: %q %w", found, err)
			}
			_, err = os.Stat(h.file("/var/lib/cloud/data/result.json"))
			return err
		}
	}
	h.boot(data)
	eventually(t, "cloud-init has ended", 20*time.Second, finished(1))
	checkStatus(t, h)
	output, err := os.ReadFile(h.file("/var/log/cloud-init-output.log"))
	if err != nil || !strings.Contains(string(output), "\nactive\n") {
		t.Errorf("output: %v\n%s", err, output)
	}
	h.off()

	h.boot(data)
	eventually(t, "it has booted again", 20*time.Second, finished(2))
	if ran, err := os.ReadFile(h.file("/var/lib/ran")); err != nil || string(ran) != "lone\n" {
		t.Errorf("runcmd of two boots: %q %v", ran, err)
	}
	if content, err := os.ReadFile(h.file("/opt-of-lone/file")); err != nil || string(content) != "on lone" {
		t.Errorf("file: %q %v", content, err)
	}
	for _, path := range []string{"/opt-of-lone", "/var/lib/ran"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the machine has written %s of its host", path)
		}
	}
	checkPowerLoss(t, h)
}

func file(path, mode, content string) string {
	content = "      " + strings.ReplaceAll(strings.TrimSuffix(content, "\n"), "\n", "\n      ")
	return fmt.Sprintf(
		"-   path: %s\n    owner: root:root\n    permissions: '%s'\n    content: |\n%s\n", path, mode, content,
	)
}

var controlPlaneFiles = []string{
	"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key",
}
