package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaseSeconds is the kubelet's value.
const leaseSeconds = int32(40)

// register creates the Node, or takes the existing one. It runs once: a Node that a user deletes does not come back, as
// with a real kubelet.
func (r *reporter) register(ctx context.Context) (*corev1.Node, error) {
	wanted, err := r.kubelet.wantedNode()
	if err != nil {
		return nil, err
	}
	nodes := r.client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, wanted, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return node, err
	}
	node, err = nodes.Get(ctx, wanted.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	changed := node.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	maps.Copy(changed.Labels, wanted.Labels)
	if changed.Spec.ProviderID == "" {
		changed.Spec.ProviderID = wanted.Spec.ProviderID
	}
	return nodes.Update(ctx, changed, metav1.UpdateOptions{})
}

// wantedNode returns the Node to register.
func (k *kubelet) wantedNode() (*corev1.Node, error) {
	flags, err := kubeletFlags()
	if err != nil {
		return nil, err
	}
	name := k.config.Hostname
	if other := flags["hostname-override"]; other != "" && other != name {
		return nil, fmt.Errorf("nodeRegistration.name is %q: on this machine it has to be the host name %q", other, name)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
			"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
		}},
		Spec: corev1.NodeSpec{ProviderID: k.config.ProviderID},
	}
	if id := flags["provider-id"]; id != "" {
		node.Spec.ProviderID = id
	}
	for label := range strings.SplitSeq(flags["node-labels"], ",") {
		if key, value, _ := strings.Cut(label, "="); key != "" {
			node.Labels[key] = value
		}
	}
	for text := range strings.SplitSeq(flags["register-with-taints"], ",") {
		if taint, ok := parseTaint(text); ok {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	k.setStatus(node)
	return node, nil
}

// parseTaint parses key=value:effect.
func parseTaint(text string) (corev1.Taint, bool) {
	left, effect, ok := strings.Cut(text, ":")
	key, value, _ := strings.Cut(left, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}, ok
}

// setStatus fills in the Node status that the kubelet reports.
func (k *kubelet) setStatus(node *corev1.Node) {
	s := &node.Status
	s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: k.config.Address}}
	s.DaemonEndpoints.KubeletEndpoint.Port = 10250
	s.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	s.Allocatable = s.Capacity
	id := machineID(k.config)
	s.NodeInfo = corev1.NodeSystemInfo{
		MachineID: id, SystemUUID: id, BootID: id, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		KernelVersion: kernel(), OSImage: "a machine for tests", ContainerRuntimeVersion: "machine://1",
		KubeletVersion: k.config.Kubelet,
	}
	for _, c := range []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready " +
			"status"},
	} {
		setNodeCondition(s, c)
	}
}

func setNodeCondition(s *corev1.NodeStatus, c corev1.NodeCondition) {
	c.LastHeartbeatTime = metav1.Now()
	c.LastTransitionTime = c.LastHeartbeatTime
	at := slices.IndexFunc(s.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type })
	if at < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[at].Status == c.Status {
		c.LastTransitionTime = s.Conditions[at].LastTransitionTime
	}
	s.Conditions[at] = c
}

// updateNode reports the Node as ready.
func (r *reporter) updateNode(ctx context.Context) error {
	nodes := r.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, r.node.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the Node: %w", err)
	}
	r.kubelet.setStatus(node)
	// Only the status, like the kubelet: controllers change taints at the same time.
	patch, err := json.Marshal(map[string]any{"status": node.Status})
	if err != nil {
		return err
	}
	_, err = nodes.PatchStatus(ctx, r.node.Name, patch)
	if err != nil {
		return fmt.Errorf("reporting the Node: %w", err)
	}
	return nil
}

// renewLease renews the Node's lease.
func (r *reporter) renewLease(ctx context.Context) error {
	leases := r.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	name, seconds, now := r.node.Name, leaseSeconds, metav1.NowMicro()
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: r.node.UID}},
		}}
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	} else if err == nil {
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing the Node's lease: %w", err)
	}
	return nil
}

func kernel() string {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}
