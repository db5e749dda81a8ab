package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
)

//go:embed config
var configs embed.FS

// render fills a file of the folder config.
func render(name string, values any) ([]byte, error) {
	t, err := template.ParseFS(configs, "config/"+name)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	var out bytes.Buffer
	if err := t.Option("missingkey=error").Execute(&out, values); err != nil {
		return nil, fmt.Errorf("writing %s: %w", name, err)
	}
	return out.Bytes(), nil
}

const (
	proxyPort = 10256 // of its health check
	// containerdSocket is the path of the socket in the node's mounts.
	containerdSocket = "/run/containerd/containerd.sock"
)

// Node is a machine of a cluster: a network, mounts, a host name and process ids of its own. Its programs are restarted
// when they end, as by systemd.
type Node struct {
	Machine
	// Containerd, Kubelet and Proxy are its programs. Containers survive a restart of each of them.
	Containerd, Kubelet, Proxy *proc.Service

	number int

	// Of a node that kubeadm joins, whose programs of Kubernetes may have another version.
	joins bool
	old   bool   // the version is v1.30, with older forms of configuration
	patch string // of the kubelet's configuration
}

func (c *Cluster) newNode(number int) *Node {
	return c.nodeAt(nodeName(number), number)
}

// nodeAt returns a node that has not been started. Its number decides its address and those of its Pods.
func (c *Cluster) nodeAt(name string, number int) *Node {
	return &Node{number: number, Machine: Machine{
		Name: name, Address: netns.AddressAt(c.segment.Prefix, number), cluster: c, dir: c.File(name),
	}}
}

// group is the control group of the node's Pods.
func (n *Node) group() string { return n.cluster.Workspace.Name + "/" + n.Name }

func (n *Node) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		n.connect, n.writeFiles, n.startInit, n.startContainerd, n.startKubelet, n.startProxy, n.waitReady,
	} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("starting %s: %w", n.Name, err)
		}
	}
	return nil
}

// connect gives the node its network and its control groups.
func (n *Node) connect(ctx context.Context) (err error) {
	c := n.cluster
	if n.Namespace, err = c.segment.AddMachine(ctx, n.Name, n.number); err != nil {
		return err
	}
	return errors.Join(
		c.segment.Route(ctx, podsOf(n.number), n.Address),
		n.Namespace.SetSysctl("net/ipv4/ip_forward", "1"),
		n.Namespace.SetSysctl("net/ipv4/ip_unprivileged_port_start", "0"),
		c.groups.Make(n.group()),
	)
}

// writeFiles writes the configuration and the credentials of all programs.
func (n *Node) writeFiles(context.Context) error {
	return errors.Join(n.writeRuntime(), n.writeKubelet(), n.writeProxy())
}

// writeKubelet writes what the kubelet of a node reads that is not joined by kubeadm.
func (n *Node) writeKubelet() error {
	c := n.cluster
	serving, err := c.kubelets.Issue(pki.LeafSpec{
		CommonName: "system:node:" + n.Name, Organizations: []string{"system:nodes"},
		Names: []string{n.Name, n.Address.String()}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return err
	}
	return errors.Join(
		n.render("kubelet.yaml", "kubelet.yaml"), serving.Write(n.dir, "kubelet"),
		write(n.dir, "ca.crt", c.kubelets.CertPEM),
		write(n.dir, "resolv.conf", []byte("nameserver "+dns.String()+"\n")),
		c.user(filepath.Join(n.dir, "node.kubeconfig"), "system:node:"+n.Name, "system:nodes"),
	)
}

// writeProxy writes what kube-proxy reads.
func (n *Node) writeProxy() error {
	return errors.Join(
		n.render("proxy.yaml", "proxy.yaml"),
		n.cluster.user(filepath.Join(n.dir, "proxy.kubeconfig"), "system:kube-proxy"),
	)
}

// writeRuntime makes the folders of the node, and writes what containerd and its plugins read.
func (n *Node) writeRuntime() error {
	var errs []error
	for _, name := range append([]string{"log/pods", "log/containers"}, bound...) {
		errs = append(errs, os.MkdirAll(filepath.Join(n.dir, name), 0o755))
	}
	for name, value := range kernelParameters {
		errs = append(errs, write(filepath.Join(n.dir, "sys"), name, []byte(value+"\n")))
	}
	hosts := fmt.Sprintf("server = \"http://%[1]s\"\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		n.cluster.Registry())
	return errors.Join(append(errs,
		n.render("containerd.toml", "containerd.toml"), n.render("cni.conflist", "cni/10-pods.conflist"),
		write(n.dir, "registries/_default/hosts.toml", []byte(hosts)),
	)...)
}

// render fills a file of the folder config for the node, and writes it to the node's folder.
func (n *Node) render(name, to string) error {
	data, err := render(name, map[string]any{
		"Dir": n.dir, "Bin": n.cluster.Parts.Real, "Address": n.Address, "Pods": podsOf(n.number), "AllPods": allPods,
		"DNS": dns, "Group": "/" + n.group(), "Pause": pauseImage, "Old": n.old,
	})
	return errors.Join(err, write(n.dir, to, data))
}

// startInit makes the node's namespaces, which its first process holds, and mounts its file systems.
func (n *Node) startInit(context.Context) (err error) {
	if n.init, err = startInit(n.cluster, n.Name, n.Namespace); err != nil {
		return err
	}
	return enter(n.init.PID(), func() error { return prepare(n.Name, n.dir) })
}

// program returns the path of a program of the node.
func (n *Node) program(name string) string {
	if n.joins && strings.HasPrefix(name, "kube") {
		return n.cluster.Parts.MachinePath(name)
	}
	return n.cluster.Parts.RealPath(name)
}

// supervise starts a program inside of the node.
func (n *Node) supervise(name, program string, args ...string) (*proc.Service, error) {
	path := "PATH=" + n.cluster.Parts.Real + ":" + os.Getenv("PATH")
	return proc.Supervise(proc.Spec{
		Name: n.Name + "-" + name, Program: n.program(program), Args: args, Env: []string{path},
		Log:   n.cluster.LogFile(n.Name + "-" + name),
		Enter: func(start func() error) error { return enter(n.init.PID(), start) },
	})
}

func (n *Node) startContainerd(ctx context.Context) (err error) {
	n.Containerd, err = n.supervise("containerd", "containerd", "--config="+filepath.Join(n.dir, "containerd.toml"))
	if err != nil {
		return err
	}
	return n.Containerd.WaitReady(ctx, proc.StartTimeout, n.containerdAnswers)
}

// containerdAnswers returns nil if containerd accepts a connection at its socket.
func (n *Node) containerdAnswers(ctx context.Context) error {
	socket := filepath.Join("/proc", strconv.Itoa(n.init.PID()), "root", containerdSocket)
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (n *Node) startKubelet(context.Context) (err error) {
	n.Kubelet, err = n.supervise("kubelet", "kubelet", "--config="+filepath.Join(n.dir, "kubelet.yaml"),
		"--kubeconfig="+filepath.Join(n.dir, "node.kubeconfig"), "--hostname-override="+n.Name,
		"--node-ip="+n.Address.String())
	return err
}

// startProxy starts kube-proxy when the Node exists, whose address it reads.
func (n *Node) startProxy(ctx context.Context) error {
	if err := n.Kubelet.WaitReady(ctx, proc.StartTimeout, func(ctx context.Context) error {
		return n.cluster.Client.Get(ctx, types.NamespacedName{Name: n.Name}, &corev1.Node{})
	}); err != nil {
		return err
	}
	var err error
	n.Proxy, err = n.supervise("kube-proxy", "kube-proxy", "--config="+filepath.Join(n.dir, "proxy.yaml"),
		"--hostname-override="+n.Name)
	if err != nil {
		return err
	}
	return n.Proxy.WaitReady(ctx, proc.StartTimeout, func(ctx context.Context) error {
		return n.healthy(ctx, proxyPort)
	})
}

// healthy returns nil if a program of the node answers its health check.
func (n *Node) healthy(ctx context.Context, port int) error {
	transport := &http.Transport{DialContext: n.Namespace.DialContext, DisableKeepAlives: true}
	url := "http://" + net.JoinHostPort(n.Address.String(), strconv.Itoa(port)) + "/healthz"
	return proc.Answers200(&http.Client{Transport: transport}, url)(ctx)
}

// waitReady waits until the apiserver has the node's condition Ready.
func (n *Node) waitReady(ctx context.Context) error {
	return n.Kubelet.WaitReady(ctx, proc.StartTimeout, func(ctx context.Context) error { return n.Ready(ctx) })
}

// Ready returns nil if the node's condition Ready is true.
func (n *Node) Ready(ctx context.Context) error {
	node := &corev1.Node{}
	if err := n.cluster.Client.Get(ctx, types.NamespacedName{Name: n.Name}, node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready: %+v", n.Name, node.Status.Conditions)
}

// RestartContainerd stops containerd, and starts it after a pause. Containers keep running meanwhile.
func (n *Node) RestartContainerd(ctx context.Context, pause time.Duration) error {
	if err := n.Containerd.Terminate(readyTime); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
	n.Containerd.Resume()
	return n.Containerd.WaitReady(ctx, proc.StartTimeout, n.containerdAnswers)
}

// Run runs a program inside of the node, such as one of the real parts, and returns its output.
func (n *Node) Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := enter(n.init.PID(), cmd.Start); err != nil {
		return nil, fmt.Errorf("running %s on %s: %w", program, n.Name, err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("running %s on %s: %w: %s", program, n.Name, err, strings.TrimSpace(out.String()))
	}
	return out.Bytes(), nil
}

// stop ends all processes of the node at once. It may be called again, and before the node has started.
func (n *Node) stop() {
	if n.init != nil {
		n.init.Kill()
	}
	for _, service := range []*proc.Service{n.Proxy, n.Kubelet, n.Containerd} {
		if service != nil {
			service.Stop() // its process has ended
		}
	}
}

// PodLogs returns the folder with the logs of the node's Pods.
func (n *Node) PodLogs() string { return filepath.Join(n.dir, "upper/var/log/pods") }

// Processes returns the processes in the containers of the node's Pods, as this machine numbers them.
func (n *Node) Processes() ([]int, error) { return n.cluster.groups.Processes(n.group()) }

// PodNetworks returns the folder in which the runtime has a file for each network device of the node's Pods, in the
// format of the CNI library's cache. It exists once a Pod has started.
func (n *Node) PodNetworks() string { return filepath.Join(n.dir, "cni/results") }
