package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// Pod is a Pod in every workload cluster of StartKubelet, in the namespace default, that can run commands.
const Pod = "shell"

const (
	kubeletPort = 10250
	node        = "worker"
)

// StartKubelet starts a kubelet without containers in the workload network, and gives both workload clusters a Node for
// it and a Pod on it: commands in the Pod run on this machine.
func (l *Lab) StartKubelet(ctx context.Context) error {
	dir := l.File("kubelet")
	pair, err := l.SNI.CA.Issue(pki.LeafSpec{
		CommonName: "system:node:" + node,
		Names:      []string{netns.WorkloadAddress.String()}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), pair.Write(dir, "kubelet")); err != nil {
		return fmt.Errorf("writing the kubelet's certificate: %w", err)
	}
	address := netip.AddrPortFrom(netns.WorkloadAddress, kubeletPort).String()
	kubelet, err := proc.Start(proc.Spec{
		Name: "kubelet", Namespace: l.Network.Workload, Program: l.Parts.RealPath("fake-kubelet"), Log: l.LogFile("kubelet"),
		Args: []string{"-address=" + address, "-cert=" + dir + "/kubelet.crt", "-key=" + dir + "/kubelet.key"},
	})
	if err != nil {
		return err
	}
	l.OnClose(func(context.Context) { kubelet.Kill() })
	for _, apiServer := range []*kube.APIServer{l.SNI, l.Connect} {
		if err := createPod(ctx, apiServer); err != nil {
			return fmt.Errorf("creating a Pod in %s: %w", apiServer.Name, err)
		}
	}
	return kubelet.WaitReady(ctx, proc.StartTimeout, func(ctx context.Context) error {
		conn, err := l.Network.Workload.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) // it accepts connections
	})
}

// createPod makes a Node and a running Pod on it. The Node has no host name, which the apiserver would look up in DNS.
func createPod(ctx context.Context, a *kube.APIServer) error {
	worker := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: Pod},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "shell", Image: "none"}}},
	}
	for _, object := range []client.Object{worker, account, pod} {
		if err := a.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	worker.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: netns.WorkloadAddress.String()}}
	worker.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	pod.Status.Phase = corev1.PodRunning
	return errors.Join(a.Client.Status().Update(ctx, worker), a.Client.Status().Update(ctx, pod))
}
