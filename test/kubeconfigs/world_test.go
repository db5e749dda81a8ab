package kubeconfigs

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/capi/inject"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const (
	domain       model.TunnelDomain = "tunnels.example.test"
	secondDomain model.TunnelDomain = "tunnels.second.test"

	namespace        = "shops"
	controlPlaneAPI  = "controlplane.cluster.x-k8s.io/v1beta2"
	controlPlaneKind = "KubeadmControlPlane"
)

//go:embed testdata/cluster.yaml
var clusterYAML string

//go:embed testdata/healthcheck.yaml
var healthCheckYAML string

//go:embed testdata/workers.yaml
var workersYAML string

// member is a workload cluster that Cluster API creates.
type member struct {
	*lab.Cluster
	lab  *lab.Lab // of its management cluster
	mode v1alpha1.KubeconfigMode

	begun  time.Time // when it was created
	breaks string    // a command to run before kubeadm; may be empty
	silent bool      // its machines do not report how they boot
}

// newMember describes a workload cluster. It creates nothing yet.
func newMember(l *lab.Lab, name string, mode v1alpha1.KubeconfigMode) *member {
	return &member{Cluster: l.Cluster(types.NamespacedName{Namespace: namespace, Name: name}), lab: l, mode: mode}
}

// fill inserts a Cluster's names and the version of its machines into a manifest.
func (m *member) fill(ctx context.Context, manifest string) ([]byte, error) {
	version, err := m.lab.Parts.MachineVersion(ctx)
	filled := strings.NewReplacer("NAMESPACE", m.Namespace, "NAME", m.Name, "VERSION", version).Replace(manifest)
	return []byte(filled), err
}

// apply applies a manifest for the Cluster to the management cluster.
func (m *member) apply(t *testing.T, manifest string) {
	t.Helper()
	filled, err := m.fill(t.Context(), manifest)
	must(t, err)
	must(t, m.lab.Management.Apply(t.Context(), filled))
}

// manifests returns what a user applies. The control plane includes its edges. In mode connect its certificates do not
// contain the tunnel hostname.
func (m *member) manifests(ctx context.Context) ([]byte, error) {
	filled, err := m.fill(ctx, clusterYAML)
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, one := range bytes.Split(filled, []byte("\n---\n")) {
		object := map[string]any{}
		if err := yaml.Unmarshal(one, &object); err != nil {
			return nil, err
		}
		if object["kind"] == controlPlaneKind {
			if err := m.inject(object); err != nil {
				return nil, err
			}
		}
		data, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return bytes.Join(all, []byte("\n---\n")), nil
}

// inject adds the edges to a control plane.
func (m *member) inject(controlPlane map[string]any) error {
	config, _, err := unstructured.NestedMap(controlPlane, "spec", "kubeadmConfigSpec")
	if err != nil {
		return err
	}
	key := model.Key{Namespace: m.Namespace, Name: m.Name}
	if err := inject.Fields(config, inject.Options{
		Cluster: key, Domain: domain,
		Image: "fairlead-edge:test",
	}); err != nil {
		return err
	}
	if m.mode == v1alpha1.KubeconfigModeConnect {
		unstructured.RemoveNestedField(config, "clusterConfiguration", "apiServer")
	} else if err := addNames(config, key); err != nil {
		return err
	}
	if err := m.reportBoots(config); err != nil {
		return err
	}
	return unstructured.SetNestedMap(controlPlane, config, "spec", "kubeadmConfigSpec")
}

// addNames adds the tunnel hostname of the second installation to the serving certificates from the beginning, because
// a new name requires new machines.
func addNames(config map[string]any, key model.Key) error {
	path := []string{"clusterConfiguration", "apiServer", "certSANs"}
	names, _, err := unstructured.NestedStringSlice(config, path...)
	if err != nil {
		return err
	}
	hostname, err := secondDomain.Hostname(key)
	if err != nil {
		return err
	}
	return unstructured.SetNestedStringSlice(config, append(names, hostname), path...)
}

// create makes the namespace and applies the manifests.
func (m *member) create(ctx context.Context) error {
	m.begun = time.Now()
	manifests, err := m.manifests(ctx)
	if err != nil {
		return err
	}
	err = m.lab.Management.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.Namespace}})
	if err := client.IgnoreAlreadyExists(err); err != nil {
		return err
	}
	return m.lab.Management.Apply(ctx, manifests)
}

// controlPlane reads the control plane.
func (m *member) controlPlane(ctx context.Context) (*unstructured.Unstructured, error) {
	return m.Object(ctx, controlPlaneAPI, controlPlaneKind, m.Name)
}

// hasStatus returns a condition that is nil once the control plane has a condition with a status.
func (m *member) hasStatus(kind string, status metav1.ConditionStatus) func(context.Context) error {
	return func(ctx context.Context) error {
		object, err := m.controlPlane(ctx)
		if err != nil {
			return err
		}
		return hasCondition(object, kind, status)
	}
}

// tunnelHasStatus returns a condition that is nil once the Tunnel has a condition with a status.
func (m *member) tunnelHasStatus(kind string, status metav1.ConditionStatus) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := m.Tunnel(ctx)
		if err != nil {
			return err
		}
		return isCondition(tunnel.Status.Conditions, kind, status)
	}
}

func isCondition(conditions []metav1.Condition, kind string, status metav1.ConditionStatus) error {
	condition := meta.FindStatusCondition(conditions, kind)
	switch {
	case condition == nil:
		return fmt.Errorf("there is no condition %s yet", kind)
	case condition.Status != status:
		return fmt.Errorf("condition %s is %s: %s: %s", kind, condition.Status, condition.Reason, condition.Message)
	}
	return nil
}

func hasCondition(object *unstructured.Unstructured, kind string, status metav1.ConditionStatus) error {
	list, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return err
	}
	var conditions []metav1.Condition
	data, err := yaml.Marshal(list)
	if err := errors.Join(err, yaml.Unmarshal(data, &conditions)); err != nil {
		return err
	}
	return isCondition(conditions, kind, status)
}

// machines returns the Machines of the control plane.
func (m *member) machines(ctx context.Context) ([]clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	err := m.lab.Management.Client.List(ctx, list, client.InNamespace(m.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: m.Name}, client.HasLabels{clusterv1.MachineControlPlaneLabel})
	return list.Items, err
}

// hasMachines returns a condition that is nil once the control plane has the given number of machines, each with a
// healthy etcd member and a Node, and no machine is being created or deleted.
func (m *member) hasMachines(count int) func(context.Context) error {
	return func(ctx context.Context) error {
		machines, err := m.machines(ctx)
		if err != nil {
			return err
		}
		if len(machines) != count {
			return fmt.Errorf("%d machines, not %d", len(machines), count)
		}
		for i := range machines {
			if !machines[i].Status.NodeRef.IsDefined() {
				return fmt.Errorf("machine %s has no Node yet", machines[i].Name)
			}
			if err := isCondition(machines[i].Status.Conditions, "EtcdMemberHealthy", metav1.ConditionTrue); err != nil {
				return fmt.Errorf("machine %s: %w", machines[i].Name, err)
			}
		}
		return m.hasStatus("EtcdClusterHealthy", metav1.ConditionTrue)(ctx)
	}
}

// scale changes the number of control-plane machines.
func (m *member) scale(ctx context.Context, count int) error {
	controlPlane, err := m.controlPlane(ctx)
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, count)
	return m.lab.Management.Client.Patch(ctx, controlPlane, client.RawPatch(types.MergePatchType, patch))
}

// interval is the time between two checks of a condition. Each check costs the apiservers something, and there are many
// checks.
const interval = 250 * time.Millisecond

// within waits for a condition, records how long it took, and fails the test if it takes longer than the limit.
func within(t *testing.T, limit time.Duration, figure string, condition func(context.Context) error) {
	t.Helper()
	begin := time.Now()
	var next time.Time
	last := errors.New("not looked at yet")
	err := proc.Wait(t.Context(), limit, func(ctx context.Context) error {
		if time.Now().Before(next) {
			return last
		}
		last = condition(ctx)
		next = time.Now().Add(interval)
		return last
	})
	if err != nil {
		t.Fatal(err)
	}
	if figure != "" {
		measured(figure, time.Since(begin).Seconds())
	}
}
