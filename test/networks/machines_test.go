package networks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// bootstrapTime bounds what Cluster API does before a machine starts: it looks again after 30 s at the latest.
const bootstrapTime = time.Minute

// machineManifest is a Machine whose bootstrap data Cluster API's kubeadm provider generates. The test is its
// infrastructure provider. Preflight checks do not apply: machines share a kernel.
const machineManifest = `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: LabMachine
metadata: {name: MACHINE, namespace: SPACE, labels: {cluster.x-k8s.io/cluster-name: CLUSTER}}
spec: {}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfig
metadata: {name: MACHINE, namespace: SPACE, labels: {cluster.x-k8s.io/cluster-name: CLUSTER}}
spec:
  files:
    - path: PATCH_FILE
      content: |
        KUBELET
  joinConfiguration:
    nodeRegistration:
      name: MACHINE
      criSocket: unix:///run/containerd/containerd.sock
      ignorePreflightErrors: [all]
      kubeletExtraArgs:
        - {name: node-ip, value: ADDRESS}
        - {name: node-labels, value: site=REGION}
        - {name: provider-id, value: "PROVIDER_ID"}
    patches: {directory: /etc/kubernetes/patches}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: MACHINE, namespace: SPACE, labels: {cluster.x-k8s.io/cluster-name: CLUSTER}}
spec:
  clusterName: CLUSTER
  version: VERSION
  bootstrap: {configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfig, name: MACHINE}}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabMachine, name: MACHINE}
`

// management returns a client of the management cluster.
func (r *region) management() client.Client { return r.of.world.Management.Client }

// providerID returns the id of a machine, on its Node and on its LabMachine.
func (r *region) providerID(name string) string {
	return "lab:///" + r.of.Name + "/" + r.name + "/" + name
}

// createMachine creates a Machine of the Cluster, and returns its bootstrap data.
func (r *region) createMachine(ctx context.Context, n *cluster.Node) (data []byte, err error) {
	version, err := r.of.world.Parts.MachineVersion(ctx)
	if err != nil {
		return nil, err
	}
	patch := strings.ReplaceAll(strings.TrimSpace(n.KubeletPatch()), "\n", "\n        ")
	manifest := strings.NewReplacer(
		"MACHINE", n.Name, "SPACE", world.Namespace, "CLUSTER", r.of.Name, "PATCH_FILE", cluster.PatchFile,
		"KUBELET", patch, "ADDRESS", n.Address.String(), "REGION", r.name, "PROVIDER_ID", r.providerID(n.Name),
		"VERSION", version,
	).Replace(machineManifest)
	objects, err := kube.ParseObjects([]byte(manifest))
	if err != nil {
		return nil, err
	}
	if err := r.of.world.Management.CreateAll(ctx, objects); err != nil {
		return nil, err
	}
	err = proc.Wait(ctx, bootstrapTime, func(ctx context.Context) error {
		machine, err := r.machine(ctx, n.Name)
		if err != nil {
			return err
		}
		if machine.Spec.Bootstrap.DataSecretName == nil {
			return fmt.Errorf("Machine %s has no bootstrap data: %+v", n.Name, machine.Status.Conditions)
		}
		secret := &corev1.Secret{}
		at := types.NamespacedName{Namespace: world.Namespace, Name: *machine.Spec.Bootstrap.DataSecretName}
		err = r.management().Get(ctx, at, secret)
		data = secret.Data["value"]
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, lines(r.of.world, "capi-bootstrap"))
	}
	return data, nil
}

// provisioned does what an infrastructure provider does when a machine exists.
func (r *region) provisioned(ctx context.Context, n *cluster.Node) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta2")
	object.SetKind("LabMachine")
	object.SetNamespace(world.Namespace)
	object.SetName(n.Name)
	patch := func(text string, values ...any) client.Patch {
		return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, text, values...))
	}
	return errors.Join(
		r.management().Patch(ctx, object, patch(`{"spec": {"providerID": %q}}`, r.providerID(n.Name))),
		r.management().Status().Patch(ctx, object, patch(`{"status": {"initialization": {"provisioned": true}}}`)),
	)
}

func (r *region) machine(ctx context.Context, name string) (*clusterv1.Machine, error) {
	machine := &clusterv1.Machine{}
	return machine, r.management().Get(ctx, types.NamespacedName{Namespace: world.Namespace, Name: name}, machine)
}

// running returns a condition that is nil once Cluster API has found the Node of a machine.
func (r *region) running(n *cluster.Node) func(context.Context) error {
	return func(ctx context.Context) error {
		machine, err := r.machine(ctx, n.Name)
		if err == nil && (machine.Status.NodeRef.Name != n.Name || machine.Status.Phase != "Running") {
			err = fmt.Errorf("Machine %s: %+v", n.Name, machine.Status)
		}
		return err
	}
}

// deleteMachine deletes a Machine, and waits until Cluster API has drained and deleted its Node.
func (r *region) deleteMachine(ctx context.Context, name string) error {
	machine, err := r.machine(ctx, name)
	if err != nil {
		return err
	}
	if err := r.management().Delete(ctx, machine); err != nil {
		return err
	}
	if err := proc.Wait(ctx, bootstrapTime, func(ctx context.Context) error {
		if machine, err = r.machine(ctx, name); err == nil {
			return fmt.Errorf("Machine %s exists: %+v", name, machine.Status)
		}
		return client.IgnoreNotFound(err)
	}); err != nil {
		return err
	}
	node := &corev1.Node{}
	if err := r.of.APIServer.Client.Get(ctx, types.NamespacedName{Name: name}, node); !apierrors.IsNotFound(err) {
		return fmt.Errorf("Node %s exists without its Machine: %w", name, err)
	}
	return nil
}
