package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	// KubeletPort is the port of all kubelets of a lab.
	KubeletPort = 10250
	// Container is the name of the only container of a Pod of CreateNode.
	Container = "shell"
)

// KubeletSpec describes a kubelet without containers: commands run on its machine, port-forward dials its machine.
type KubeletSpec struct {
	Name      string // of the process, its log and its folder
	Namespace *netns.Namespace
	Address   netip.Addr
	CA        *pki.Authority // of its serving certificate
	LogBytes  int64          // size of the logs of each container; 0: there are none
}

// StartKubelet starts a kubelet without containers, and waits until it accepts connections.
func StartKubelet(ctx context.Context, w *workspace.Workspace, spec KubeletSpec) (*proc.Process, error) {
	dir := w.File(spec.Name)
	pair, err := spec.CA.Issue(pki.LeafSpec{
		CommonName: "kubelet", Names: []string{spec.Address.String()}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), pair.Write(dir, "kubelet")); err != nil {
		return nil, fmt.Errorf("writing the certificate of %s: %w", spec.Name, err)
	}
	address := netip.AddrPortFrom(spec.Address, KubeletPort).String()
	kubelet, err := proc.Start(proc.Spec{
		Name: spec.Name, Namespace: spec.Namespace, Program: w.Parts.RealPath("fake-kubelet"), Log: w.LogFile(spec.Name),
		Args: []string{
			"-address=" + address, "-cert=" + dir + "/kubelet.crt", "-key=" + dir + "/kubelet.key",
			"-log-bytes=" + strconv.FormatInt(spec.LogBytes, 10),
		},
	})
	if err != nil {
		return nil, err
	}
	w.OnClose(func(context.Context) { kubelet.Kill() })
	return kubelet, kubelet.WaitReady(ctx, proc.StartTimeout, func(ctx context.Context) error {
		conn, err := spec.Namespace.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		return tls.Client(conn, proc.Insecure()).HandshakeContext(ctx)
	})
}

// CreateNode creates a Node with an address, and running Pods on it in the namespace default. The Node has no host
// name, which the apiserver would look up in DNS.
func (a *APIServer) CreateNode(ctx context.Context, name string, address netip.Addr, pods ...string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	if err := a.Client.Create(ctx, account); client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("creating a Node in %s: %w", a.Name, err)
	}
	if err := a.Client.Create(ctx, node); err != nil {
		return fmt.Errorf("creating a Node in %s: %w", a.Name, err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"),
	}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = KubeletPort
	if err := a.Client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("creating a Node in %s: %w", a.Name, err)
	}
	for _, name := range pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
			Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: Container, Image: "none"}}},
		}
		if err := a.Client.Create(ctx, pod); err != nil {
			return fmt.Errorf("creating a Pod in %s: %w", a.Name, err)
		}
		pod.Status.Phase = corev1.PodRunning
		if err := a.Client.Status().Update(ctx, pod); err != nil {
			return fmt.Errorf("creating a Pod in %s: %w", a.Name, err)
		}
	}
	return nil
}

// EgressSelector returns a configuration with which an apiserver dials Nodes, webhooks and aggregated APIs through a
// Unix socket. protocol is HTTPConnect or GRPC.
func EgressSelector(protocol, socket string) []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: %s
    transport: {uds: {udsName: %s}}
`, protocol, socket)
}
