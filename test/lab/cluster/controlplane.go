package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	controlPlane     = "control-plane" // the folder and the namespace
	controlPlaneHost = 250
	apiServerPort    = 6443
)

// startControlPlane starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	machine, err := c.segment.AddMachine(ctx, controlPlane, controlPlaneHost)
	if err != nil {
		return err
	}
	if err := machine.SetHost(RegistryName, c.segment.Gateway()); err != nil {
		return err
	}
	etcd, err := kube.StartEtcd(ctx, c.Workspace, machine)
	if err != nil {
		return err
	}
	if err := c.writeKubeletClient(); err != nil {
		return err
	}
	file := func(name string) string { return c.File(controlPlane, name) }
	c.APIServer, err = kube.StartAPIServer(ctx, c.Workspace, kube.APIServerSpec{
		Name: controlPlane, Namespace: machine, Etcd: etcd, Prefix: "/registry",
		Address: netns.AddressAt(machines, controlPlaneHost), Port: apiServerPort,
		Flags: []string{
			"--allow-privileged=true", "--enable-admission-plugins=NodeRestriction",
			"--endpoint-reconciler-type=lease", // Pods find the apiserver through the Service kubernetes
			"--enable-aggregator-routing=true", // dials webhooks in Pods: no kube-proxy runs beside the apiserver
			"--kubelet-client-certificate=" + file("kubelet-client.crt"),
			"--kubelet-client-key=" + file("kubelet-client.key"),
			"--kubelet-certificate-authority=" + file("kubelet-ca.crt"),
		},
	})
	if err != nil {
		return err
	}
	data, err := c.AdminKubeconfig(c.name)
	if err := kube.WriteKubeconfig(c.Kubeconfig(), data, err); err != nil {
		return err
	}
	return errors.Join(c.startControllers(), c.startScheduler())
}

// writeKubeletClient makes the authority of kubelets, and the apiserver's certificate for them. The apiserver's own
// authority does not exist before it has started.
func (c *Cluster) writeKubeletClient() (err error) {
	dir, err := c.folder(controlPlane)
	if err != nil {
		return err
	}
	if c.kubelets, err = pki.NewAuthority("kubelets"); err != nil {
		return err
	}
	pair, err := c.kubelets.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"},
		Usage: x509.ExtKeyUsageClientAuth,
	})
	if err != nil {
		return err
	}
	return errors.Join(pair.Write(dir, "kubelet-client"), write(dir, "kubelet-ca.crt", c.kubelets.CertPEM))
}

// user writes the kubeconfig of a component.
func (c *Cluster) user(file, name string, groups ...string) error {
	pair, err := c.CA.Issue(pki.LeafSpec{CommonName: name, Organizations: groups, Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		return err
	}
	data, err := kube.Kubeconfig(c.name, c.URL(), c.CA.CertPEM,
		clientcmdapi.AuthInfo{ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM})
	return kube.WriteKubeconfig(file, data, err)
}

// RunControllers starts kube-controller-manager and kube-scheduler beside an apiserver that Start has not started. They
// end with the workspace.
func RunControllers(w *workspace.Workspace, a *kube.APIServer) error {
	c := &Cluster{APIServer: a, Workspace: w, name: a.Name}
	return errors.Join(c.startControllers(), c.startScheduler())
}

func (c *Cluster) startControllers() error {
	dir := c.File(c.APIServer.Name)
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		c.user(file("controllers.kubeconfig"), "system:kube-controller-manager"), write(dir, "ca.key", c.CA.KeyPEM),
	); err != nil {
		return err
	}
	return c.startComponent("kube-controller-manager", file("controllers.kubeconfig"),
		"--use-service-account-credentials=true", "--service-account-private-key-file="+file("sa.key"),
		"--root-ca-file="+file("ca.crt"), "--cluster-signing-cert-file="+file("ca.crt"),
		"--cluster-signing-key-file="+file("ca.key"), "--cert-dir="+file("controllers"), "--allocate-node-cidrs=false",
		"--controllers=*,bootstrapsigner,tokencleaner", // as kubeadm sets it
		// The defaults are for clusters whose networks fail for a while.
		"--node-monitor-grace-period=20s")
}

func (c *Cluster) startScheduler() error {
	dir := c.File(c.APIServer.Name)
	file := filepath.Join(dir, "scheduler.kubeconfig")
	if err := c.user(file, "system:kube-scheduler"); err != nil {
		return err
	}
	return c.startComponent("kube-scheduler", file, "--cert-dir="+filepath.Join(dir, "scheduler"))
}

// startComponent starts a client of the apiserver, beside it. It is restarted when it ends.
func (c *Cluster) startComponent(name, kubeconfig string, flags ...string) error {
	log := c.APIServer.Name + "-" + name
	service, err := proc.Supervise(proc.Spec{
		Name: log, Namespace: c.Namespace, Program: c.Parts.RealPath(name), Log: c.LogFile(log),
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
		}, flags...),
	})
	if err != nil {
		return err
	}
	c.OnClose(func(context.Context) { service.Stop() })
	return nil
}

// installDNS installs CoreDNS, with the Service that kubelets give to Pods.
func (c *Cluster) installDNS(ctx context.Context) error {
	manifests, err := render("dns.yaml", map[string]any{
		"Image": coreDNSImage, "DNS": dns, "Resolver": c.segment.Gateway(),
	})
	if err != nil {
		return err
	}
	return c.Apply(ctx, manifests)
}

func (c *Cluster) deleteNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := client.IgnoreNotFound(c.Client.Delete(ctx, node)); err != nil {
		return fmt.Errorf("deleting Node %s: %w", name, err)
	}
	return nil
}

// Kubectl returns a kubectl command of the administrator, in the network of the control plane.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return c.Namespace.Command(ctx, c.Parts.RealPath("kubectl"), append([]string{
		"--kubeconfig=" + c.Kubeconfig(), "--cache-dir=" + c.File("kubectl"),
	}, args...)...)
}
