package kubeconfigs

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// reportCommand makes a machine report how it boots; the program is in its image.
const reportCommand = "edge-agent report --detach || true"

// reportBoots makes the machines of a control plane report how they boot.
func (m *member) reportBoots(config map[string]any) error {
	files, _, err := unstructured.NestedSlice(config, "files")
	if err != nil {
		return err
	}
	secret := map[string]any{"name": m.Name + v1alpha1.BootReportSecretSuffix, "key": v1alpha1.BootReportFileKey}
	config["files"] = append(files, map[string]any{
		"path": "/etc/fairlead/report.yaml", "permissions": "0600", "contentFrom": map[string]any{"secret": secret},
	})
	commands, _, err := unstructured.NestedSlice(config, "preKubeadmCommands")
	config["preKubeadmCommands"] = append([]any{reportCommand}, commands...) // before anything that can fail
	return err
}

func (m *member) controlPlaneReports(t *testing.T) { m.reported(t, m.machines) }

func (m *member) workersReport(t *testing.T) { m.reported(t, m.workers) }

// reported checks that all of some machines have said that they booted well.
func (m *member) reported(t *testing.T, list func(context.Context) ([]clusterv1.Machine, error)) {
	t.Helper()
	within(t, time.Minute, "", func(ctx context.Context) error {
		machines, err := list(ctx)
		if err != nil {
			return err
		}
		for i := range machines {
			if err := isCondition(machines[i].Status.Conditions, v1alpha1.MachineConditionBootstrapReported, metav1.ConditionTrue); err != nil {
				return fmt.Errorf("machine %s: %w", machines[i].Name, err)
			}
		}
		return nil
	})
}
