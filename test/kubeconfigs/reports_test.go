package kubeconfigs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
)

// reportCommand makes a machine report how it boots. The program is in the machine's image.
const reportCommand = "edge-agent report --detach || true"

// reportBoots makes the machines of a control plane report how they boot, unless the member is silent.
func (m *member) reportBoots(config map[string]any) error {
	if m.breaks != "" {
		commands, _, err := unstructured.NestedSlice(config, "preKubeadmCommands")
		if config["preKubeadmCommands"] = append(commands, m.breaks); err != nil {
			return err
		}
	}
	if m.silent {
		return nil
	}
	files, _, err := unstructured.NestedSlice(config, "files")
	if err != nil {
		return err
	}
	secret := map[string]any{"name": m.Name + v1alpha1.BootReportSecretSuffix, "key": v1alpha1.BootReportFileKey}
	config["files"] = append(files, map[string]any{
		"path": "/etc/fairlead/report.yaml", "permissions": "0600", "contentFrom": map[string]any{"secret": secret},
	})
	commands, _, err := unstructured.NestedSlice(config, "preKubeadmCommands")
	config["preKubeadmCommands"] = append([]any{reportCommand}, commands...) // before every command that can fail
	return err
}

func (m *member) controlPlaneReports(t *testing.T) { m.reported(t, m.machines) }

func (m *member) workersReport(t *testing.T) { m.reported(t, m.workers) }

// reported checks that all machines of a list have reported a successful boot.
func (m *member) reported(t *testing.T, list func(context.Context) ([]clusterv1.Machine, error)) {
	t.Helper()
	within(t, time.Minute, "", func(ctx context.Context) error {
		machines, err := list(ctx)
		if err != nil {
			return err
		}
		for i := range machines {
			if err := isCondition(machines[i].Status.Conditions, v1alpha1.MachineConditionBootstrapReported,
				metav1.ConditionTrue); err != nil {
				return fmt.Errorf("machine %s: %w", machines[i].Name, err)
			}
		}
		return nil
	})
}

const (
	// breakCA makes kubeadm init fail like a broken image or user file would, because preflight does not read the CA.
	breakCA = "echo broken > /etc/kubernetes/pki/ca.crt"
	// reportAfter is when a silent machine is reported as silent. The default of ten minutes is too long for a test.
	reportAfter = time.Minute
)

// bootsFail proves that a machine of a KCP control plane reports what failed on it, and that a machine without a report
// is marked as such. There is no other source of this information: neither has an apiserver yet.
func bootsFail(t *testing.T, l *lab.Lab) {
	failing, silent := newMember(l, "kyiv", v1alpha1.KubeconfigModeSNI), newMember(l, "lima", v1alpha1.KubeconfigModeSNI)
	silent.silent = true
	for _, m := range []*member{failing, silent} {
		m.Namespace, m.breaks = "boots", breakCA // in a namespace that is not moved
		must(t, m.create(t.Context()))
		must(t, m.optIn(t.Context()))
	}
	that(t, "a Machine's condition names the step of kubeadm that failed, and the reason", func(t *testing.T) {
		condition := failing.booted(t, v1alpha1.ReasonBootstrapFailed)
		measured("boot_failed_s", time.Since(failing.begun).Seconds())
		if !strings.HasPrefix(condition, "kubeadm certs/ca: ") || !strings.Contains(condition, "ca.crt") {
			t.Errorf("the condition says %q", condition)
		}
		if strings.Contains(condition, "PRIVATE KEY") {
			t.Error("the condition holds a key")
		}
	})
	that(t, "the condition of a silent machine differs from that of a failed one", func(t *testing.T) {
		condition := silent.booted(t, v1alpha1.ReasonNeverReported)
		measured("never_reported_s", time.Since(silent.begun).Seconds())
		if !strings.Contains(condition, "no report within "+reportAfter.String()) {
			t.Errorf("the condition says %q", condition)
		}
	})
	for _, m := range []*member{failing, silent} {
		must(t, m.Delete(t.Context()))
	}
}

// booted waits until the only machine of a control plane has failed for a reason, according to its condition and an
// event on its Machine. It returns the condition's message.
func (m *member) booted(t *testing.T, reason string) (message string) {
	t.Helper()
	clients, err := kubernetes.NewForConfig(m.lab.Management.Config)
	must(t, err)
	within(t, changed, "", func(ctx context.Context) error {
		machines, err := m.machines(ctx)
		if err != nil || len(machines) != 1 {
			return fmt.Errorf("%d machines, want one: %w", len(machines), err)
		}
		machine := &machines[0]
		c := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.MachineConditionBootstrapReported)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason {
			return fmt.Errorf("condition of machine %s: %+v, want False %s", machine.Name, c, reason)
		}
		message = c.Message
		events, err := clients.EventsV1().Events(m.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range events.Items {
			e := &events.Items[i]
			if e.Reason == reason && e.Type == corev1.EventTypeWarning && e.Regarding.Kind == "Machine" &&
				e.Regarding.Name == machine.Name {
				return nil
			}
		}
		return fmt.Errorf("no event %s on machine %s", reason, machine.Name)
	})
	return message
}
