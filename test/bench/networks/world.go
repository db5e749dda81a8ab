package networks

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
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	pod, container, node = "shell", "shell", "worker" // in every workload cluster
	kubeletPort          = 10250
	sourcePort           = 7000 // of the Pod: it sends bytes to every client
	// logBytes are more than any client reads.
	logBytes = "-log-bytes=1000000000000000"
	caFile   = "bench-ca.crt"
	// firstPort is the port of the first apiserver.
	firstPort = 6443
)

// world is a management network with apiservers, a remote network with a kubelet, and a gateway that both reach. Only
// apiservers without an egress selector use the direct connection between the two networks.
type world struct {
	*workspace.Workspace
	network    *netns.Network
	etcd       *proc.Process
	authority  *pki.Authority // of the kubelet and of konnectivity
	apiServers int            // started so far
	source     *source
}

func newWorld(ctx context.Context) (_ *world, err error) {
	parts, err := workspace.FindParts()
	if err != nil {
		return nil, err
	}
	w := &world{}
	if w.Workspace, err = workspace.NewWith(ctx, parts); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close(ctx)
		}
	}()
	if w.authority, err = pki.NewAuthority("bench"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(w.File(caFile), w.authority.CertPEM, 0o644); err != nil {
		return nil, err
	}
	if w.network, err = netns.NewNetwork(ctx, w.Name, netns.IPv4, 1); err != nil {
		return nil, err
	}
	if err := w.network.ConnectDirectly(ctx); err != nil {
		return nil, err
	}
	if w.etcd, err = kube.StartEtcd(ctx, w.Workspace, w.network.Management); err != nil {
		return nil, err
	}
	listener, err := w.network.Workload.Listen(ctx, netns.HostPort("127.0.0.1", sourcePort))
	if err != nil {
		return nil, err
	}
	w.source = newSource(listener)
	return w, w.startKubelet(ctx)
}

func (w *world) close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	w.RunClosers(ctx)
	if w.source != nil {
		_ = w.source.listener.Close()
	}
	if w.network != nil {
		w.network.Close(ctx)
	}
	_ = os.RemoveAll(w.Dir)
}

// kept adds the folder of the logs to an error.
func (w *world) kept(err error) error {
	logs, keeping := w.KeepLogs()
	return errors.Join(fmt.Errorf("%w; logs are in %s", err, logs), keeping)
}

// kubeletAddress is in the remote network.
var kubeletAddress = netip.AddrPortFrom(netns.WorkloadAddress, kubeletPort)

func (w *world) startKubelet(ctx context.Context) error {
	dir, err := w.credentials("kubelet", netns.WorkloadAddress.String())
	if err != nil {
		return err
	}
	kubelet, err := proc.Start(proc.Spec{
		Name: "kubelet", Namespace: w.network.Workload, Program: w.Parts.RealPath("fake-kubelet"), Log: w.LogFile("kubelet"),
		Args: []string{"-address=" + kubeletAddress.String(), "-cert=" + dir + ".crt", "-key=" + dir + ".key", logBytes},
	})
	if err != nil {
		return err
	}
	w.OnClose(func(context.Context) { kubelet.Kill() })
	return kubelet.WaitReady(ctx, proc.StartTimeout, func(ctx context.Context) error {
		conn, err := w.network.Workload.DialContext(ctx, "tcp", kubeletAddress.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		return tls.Client(conn, proc.Insecure()).HandshakeContext(ctx)
	})
}

// credentials writes the key pair of a server or, without names, of a client. It returns the path of the two files
// without their extensions.
func (w *world) credentials(name string, names ...string) (string, error) {
	usage := x509.ExtKeyUsageServerAuth
	if len(names) == 0 {
		usage = x509.ExtKeyUsageClientAuth
	}
	pair, err := w.authority.Issue(pki.LeafSpec{CommonName: name, Names: names, Usage: usage})
	if err != nil {
		return "", err
	}
	if err := pair.Write(w.Dir, name); err != nil {
		return "", fmt.Errorf("writing the credentials of %s: %w", name, err)
	}
	return w.File(name), nil
}

// startAPIServer starts the apiserver of a subject, with a Node and a Pod. port is its number among all.
func (w *world) startAPIServer(ctx context.Context, name string, port int, flags []string) (*kube.APIServer, error) {
	a, err := kube.StartAPIServer(ctx, w.Workspace, kube.APIServerSpec{
		Name: "apiserver-" + name, Namespace: w.network.Management, Address: netns.ManagementAddress,
		Port: uint16(firstPort + port), Etcd: w.etcd, Prefix: "/" + name, Flags: flags,
	})
	if err != nil {
		return nil, err
	}
	if err := createPod(ctx, a.Client); err != nil {
		return nil, fmt.Errorf("creating a Pod in %s: %w", a.Name, err)
	}
	return a, nil
}

// createPod makes a Node and a running Pod on it.
func createPod(ctx context.Context, c client.Client) error {
	worker := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}
	shell := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: pod},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: container, Image: "none"}}},
	}
	for _, object := range []client.Object{worker, account, shell} {
		if err := c.Create(ctx, object); err != nil {
			return err
		}
	}
	worker.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: kubeletAddress.Addr().String()},
	}
	worker.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	shell.Status.Phase = corev1.PodRunning
	return errors.Join(c.Status().Update(ctx, worker), c.Status().Update(ctx, shell))
}
