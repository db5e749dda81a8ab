package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const bootToken = "abcdef.0123456789abcdef" // of kubeadm; it must not leave the machine

// buildAgent builds the real edge-agent.
func buildAgent(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edge-agent")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"../edge-agent").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// disk writes the files of a machine below a root.
func disk(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func cloudStatus(stage, finished string) string {
	return fmt.Sprintf(
		`{"v1": {"datasource": "DataSourceNoCloud", "init-local": {"errors": [], "start": 1.5, "finished": 2.5}, "init": {"errors": [], "start": 3.5, "finished": 4.5},
		"modules-config": {"errors": [], "start": 5.5, "finished": 6.5}, "modules-final": {"errors": [], "start": 7.5, "finished": %s}, "stage": %s}}`,
		finished,
		stage,
	)
}

// machine makes a Machine with an address.
func (m *management) machine(t *testing.T, cluster, name, address string) *clusterv1.Machine {
	t.Helper()
	o := kubetest.Machine("default", cluster, name)
	if err := m.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	o.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineHostName, Address: address}}
	if err := m.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func (m *management) bootCondition(t *testing.T, machine *clusterv1.Machine) *metav1.Condition {
	t.Helper()
	var o clusterv1.Machine
	if err := m.Get(t.Context(), client.ObjectKeyFromObject(machine), &o); err != nil {
		t.Fatal(err)
	}
	return apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.MachineConditionBootstrapReported)
}

func (m *management) awaitBoot(t *testing.T, machine *clusterv1.Machine, reason string) *metav1.Condition {
	t.Helper()
	var c *metav1.Condition
	kubetest.Eventually(t, reason, func() error {
		if c = m.bootCondition(t, machine); c == nil || c.Reason != reason {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	return c
}

// TestFilesOfAMachineBecomeItsCondition runs the real edge-agent with the files of a machine, the real xds-server
// with the deployed permissions, the real controller and a real kube-apiserver.
func TestFilesOfAMachineBecomeItsCondition(t *testing.T) {
	agent := buildAgent(t)
	m := newManagement(t)
	m.xdsServer = freeport.Endpoint(t)
	at, _ := start(t, m)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range []string{"b1", "b2"} {
		if err := m.Create(t.Context(), kubetest.Cluster("default", cluster)); err != nil {
			t.Fatal(err)
		}
	}
	ours, theirs := m.machine(t, "b1", "b1-m1", host), m.machine(t, "b2", "b2-m1", host)

	root := t.TempDir()
	disk(t, root, map[string]string{
		"report.yaml": string(
			m.secret(t, "default", "b1"+v1alpha1.BootReportSecretSuffix)[v1alpha1.BootReportFileKey],
		),
		"run/cloud-init/status.json":    cloudStatus(`"modules-final"`, "null"),
		"var/log/cloud-init-output.log": "[preflight] Running pre-flight checks\n",
	})
	log := filepath.Join(root, "agent.log")
	detach := exec.CommandContext(
		t.Context(), agent, "report", "--detach", "--detach-log="+log, "--report-file="+filepath.Join(root, "report.yaml"),
		"--gateway="+at.String(), "--root="+root, "--done-file="+filepath.Join(root, "done"), "--deadline=20m", "--repeat=2h",
	)
	// CombinedOutput waits until all writers of its pipe have exited
	if out, err := detach.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { stopDetached(t, agent) })
	c := m.awaitBoot(t, ours, v1alpha1.ReasonBootstrapInProgress)
	if c.Status != metav1.ConditionUnknown || c.Message != "kubeadm preflight" {
		t.Errorf("condition %+v", c)
	}

	disk(t, root, map[string]string{
		"var/log/cloud-init-output.log": "[preflight] Running pre-flight checks\nerror: error execution phase preflight: " +
			"couldn't validate the API server with token " + bootToken + "\n",
		"run/cloud-init/status.json": cloudStatus("null", "8.5"),
	})
	c = m.awaitBoot(t, ours, v1alpha1.ReasonBootstrapFailed)
	if c.Status != metav1.ConditionFalse || !strings.HasPrefix(c.Message, "kubeadm preflight: ") ||
		!strings.Contains(c.Message, "couldn't validate") ||
		strings.Contains(c.Message, bootToken) {
		t.Errorf("condition %+v", c)
	}
	disk(t, root, map[string]string{"run/cluster-api/bootstrap-success.complete": "success\n"})
	if c = m.awaitBoot(t, ours, v1alpha1.ReasonBootstrapSucceeded); c.Status != metav1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
	kubetest.Eventually(t, "recording the report", func() error {
		_, err := os.Stat(filepath.Join(root, "done"))
		return err
	})
	if c := m.bootCondition(t, theirs); c != nil {
		t.Errorf("a machine of another Cluster has %+v", c)
	}
	written, err := os.ReadFile(log)
	if err != nil || strings.Contains(string(written), "flr1.") || !strings.Contains(string(written), "boot reported") {
		t.Errorf("log of the agent: %v\n%s", err, written)
	}
}

// stopDetached kills the background process of a test, found by the path of its program, which only this test uses.
func stopDetached(t *testing.T, program string) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range processes {
		if target, err := os.Readlink(link); err == nil && target == program {
			var pid int
			if _, err := fmt.Sscanf(link, "/proc/%d/exe", &pid); err != nil {
				t.Error(err)
				continue
			}
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	}
}

// TestAReportTokenOnlyReportsBoots tries every other use of a report token, and reports with every other token.
func TestAReportTokenOnlyReportsBoots(t *testing.T) {
	m := newManagement(t)
	at, _ := start(t, m)
	edgeToken, bundle := m.bootstrap(t, "r1")
	token := string(m.secret(t, "default", "r1"+v1alpha1.BootReportSecretSuffix)[v1alpha1.BootstrapTokenKey])
	gatewayToken := string(m.secret(t, "fairlead-system", v1alpha1.GatewaySecretName)[v1alpha1.BootstrapTokenKey])
	service := enrolclient.Client{
		Dialer: &dial.Dialer{Addresses: []model.Endpoint{at}},
		Domain: domain,
		Trust:  certs.Bundle(bundle),
	}
	report := func(token string) error {
		_, err := service.ReportBoot(t.Context(), token, &reportv1.BootReport{
			State: reportv1.BootState_BOOT_STATE_RUNNING, Step: "s", Machine: &reportv1.Machine{Hostname: "h"},
		})
		return err
	}
	kubetest.Eventually(t, "reporting", func() error { return report(token) })
	_, _, enrolling := service.EnrolEdge(t.Context(), token, "h")
	_, _, gateway := service.EnrolGateway(t.Context(), "gateway-0", enrolclient.GatewayCredential{Token: token})
	for what, err := range map[string]error{
		"an edge by a report token": enrolling, "a gateway by one": gateway,
		"a report by a bootstrap token": report(edgeToken), "a report by the gateway token": report(gatewayToken),
		"a report by a made-up token": report("flr1." + strings.Repeat("a", 52)), "a report without a token": report(""),
	} {
		if !errors.Is(err, certs.ErrRefused) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Even if the hash of a report token is stored with those of bootstrap tokens, the server rejects it by its prefix.
	tunnel := m.tunnel(t, "r1")
	tunnel.Status.Tokens = append(
		tunnel.Status.Tokens,
		v1alpha1.TokenStatus{SHA256: enrol.HashToken(token), ExpiresAt: tunnel.Status.Tokens[0].ExpiresAt, MaxUses: 9},
	)
	if err := m.Status().Update(context.WithoutCancel(t.Context()), tunnel); err != nil {
		t.Fatal(err)
	}
	if _, _, err := service.EnrolEdge(t.Context(), token, "h"); !errors.Is(err, certs.ErrRefused) {
		t.Errorf("enrolling: %v", err)
	}
}
