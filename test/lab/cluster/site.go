package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/test/lab/cgroup"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// Site is a network of machines of a cluster whose control plane is elsewhere. Several sites may have the same
// addresses. It has a registry and a name server of its own, in its router.
type Site struct {
	Segment *netns.Segment
	// Kubelet is YAML that is merged into the configuration of its kubelets. It may be empty.
	Kubelet string

	cluster *Cluster
}

// NewSite makes the network of a site: <name>, with the addresses of machines in a /24. Nothing outside reaches it, and
// its machines reach nothing outside: see netns.Network.Behind. It ends with the workspace.
func NewSite(
	ctx context.Context, w *workspace.Workspace, a *kube.APIServer, name string, prefix netip.Prefix,
) (*Site, error) {
	c := &Cluster{APIServer: a, Workspace: w, name: a.Name}
	var err error
	if c.groups, err = cgroup.Find(); err != nil {
		return nil, err
	}
	if c.segment, err = netns.NewSegment(ctx, w.Name+"-"+name, prefix); err != nil {
		return nil, err
	}
	w.OnClose(c.segment.Close)
	s := &Site{Segment: c.segment, cluster: c}
	if err := errors.Join(c.startNames(ctx, nil), c.startRegistry(ctx), c.loadOwnImages(ctx)); err != nil {
		return nil, fmt.Errorf("making site %s: %w", name, err)
	}
	return s, nil
}

// SetHost makes the machines of the site resolve a name: see Cluster.SetHost.
func (s *Site) SetHost(name string, addresses ...netip.Addr) { s.cluster.SetHost(name, addresses...) }

// Images returns the registry of the site: Load and LoadImage of the Cluster add images to it.
func (s *Site) Images() *Cluster { return s.cluster }

// StartMachine starts a machine that is no node: see Cluster.StartMachine.
func (s *Site) StartMachine(ctx context.Context, name string) (*Machine, error) {
	return s.cluster.StartMachine(ctx, name)
}

// StartNode starts a machine with a container runtime that has not joined the cluster: see Join. number, from 1 to 99
// and unique in the cluster, decides its address and those of its Pods.
func (s *Site) StartNode(ctx context.Context, name string, number int) (*Node, error) {
	n := s.cluster.nodeAt(name, number)
	version, err := s.cluster.Parts.MachineVersion(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	n.joins, n.old, n.patch = true, strings.HasPrefix(version, "v1.30."), s.Kubelet
	s.cluster.mu.Lock()
	s.cluster.nodes = append(s.cluster.nodes, n)
	s.cluster.mu.Unlock()
	s.cluster.OnClose(func(ctx context.Context) {
		n.stop()
		_ = s.cluster.groups.Remove(ctx, n.group())
	})
	resolver := func(context.Context) error {
		return n.Enter(func() error {
			text := "nameserver " + s.cluster.segment.Gateway().String() + "\n"
			return os.WriteFile("/etc/resolv.conf", []byte(text), 0o644)
		})
	}
	write := func(context.Context) error { return errors.Join(n.writeRuntime(), n.writeProxy()) }
	for _, step := range []func(context.Context) error{n.connect, write, n.startInit, resolver, n.startContainerd} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("starting %s: %w", name, err)
		}
	}
	return n, nil
}

// RemoveNode removes a machine: see Cluster.RemoveNode.
func (s *Site) RemoveNode(ctx context.Context, n *Node) error { return s.cluster.removeNode(ctx, n) }

// Pods returns the network of a node's Pods.
func (n *Node) Pods() netip.Prefix { return podsOf(n.number) }

// Enter calls a function on a thread in the namespaces of the machine.
func (m *Machine) Enter(f func() error) error { return enter(m.init.PID(), f) }

const (
	// PatchFile is where kubeadm finds the patch of the configuration of kubelets.
	PatchFile = "/etc/kubernetes/patches/kubeletconfiguration+merge.yaml"
	joinFile  = "/run/kubeadm/kubeadm-join-config.yaml"
	// joinTime bounds kubeadm join, which waits for the kubelet.
	joinTime = 4 * time.Minute
)

// kubelet is the service that kubeadm's packages install: it fails until kubeadm has written its configuration, and is
// started again.
const kubelet = `until test -e /var/lib/kubelet/config.yaml; do sleep 0.2; done
. /var/lib/kubelet/kubeadm-flags.env
exec "$0" --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
	--config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS`

// Join joins the node without Cluster API: kubeadm reads a JoinConfiguration with a bootstrap token. labels are the
// Node's, as key=value. It returns when the Node is Ready, and kube-proxy runs.
func (n *Node) Join(ctx context.Context, token, labels string) error {
	if err := n.writeJoin(token, labels); err != nil {
		return fmt.Errorf("joining %s: %w", n.Name, err)
	}
	return n.join(ctx, "kubeadm join --ignore-preflight-errors=all --config="+joinFile)
}

// Boot joins the node with the bootstrap data of a Machine, a cloud-config, as cloud-init does on a machine's first
// boot. It returns when the Node is Ready, and kube-proxy runs.
func (n *Node) Boot(ctx context.Context, bootstrapData []byte) error {
	data, err := parseCloudConfig(bootstrapData)
	if err != nil {
		return fmt.Errorf("reading the bootstrap data of %s: %w", n.Name, err)
	}
	if err := n.Enter(data.writeFiles); err != nil {
		return fmt.Errorf("writing the files of %s: %w", n.Name, err)
	}
	return n.join(ctx, strings.Join(data.RunCmd, "\n"))
}

// join runs the commands that join the node, in a shell.
func (n *Node) join(ctx context.Context, commands string) error {
	var err error
	n.Kubelet, err = n.Supervise("kubelet", "sh", "-e", "-c", kubelet, n.program("kubelet"))
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	path := "PATH=" + n.cluster.Parts.Machines + ":$PATH\n"
	out, err := n.Machine.Run(bounded, "", "sh", "-e", "-c", path+commands)
	if err != nil {
		return fmt.Errorf("joining %s: %w\n%s", n.Name, err, proc.Tail(n.cluster.LogFile(n.Name+"-kubelet"), 20))
	}
	if err := os.WriteFile(n.cluster.LogFile(n.Name+"-kubeadm"), out, 0o644); err != nil {
		return err
	}
	if err := errors.Join(n.startProxy(ctx), n.waitReady(ctx)); err != nil {
		return fmt.Errorf("joining %s: %w", n.Name, err)
	}
	return nil
}

// writeJoin writes the JoinConfiguration, and what differs between the kubelets of this machine.
func (n *Node) writeJoin(token, labels string) error {
	hash, err := n.caHash()
	if err != nil {
		return err
	}
	values := map[string]any{
		"Old": n.old, "Name": n.Name, "Address": n.Address, "Labels": labels, "Token": token, "Hash": hash,
		"Endpoint": n.cluster.Endpoint, "Patches": filepath.Dir(PatchFile),
	}
	config, err := render("join.yaml", values)
	if err != nil {
		return err
	}
	return n.Enter(func() error {
		return errors.Join(write(filepath.Dir(joinFile), filepath.Base(joinFile), config),
			write(filepath.Dir(PatchFile), filepath.Base(PatchFile), []byte(n.KubeletPatch())))
	})
}

// KubeletPatch returns what differs between the kubelets of machines, for PatchFile.
func (n *Node) KubeletPatch() string {
	return fmt.Sprintf("cgroupRoot: %s\n%s", strconv.Quote("/"+n.group()), n.patch)
}

// caHash returns the hash of the public key of the cluster's CA, as kubeadm writes it.
func (n *Node) caHash() (string, error) {
	block, _ := pem.Decode(n.cluster.CA.CertPEM)
	if block == nil {
		return "", errors.New("the CA of the cluster is no PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("reading the CA of the cluster: %w", err)
	}
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// PrepareKubeadm does what a provider of hosted control planes does with kubeadm's phases: it uploads the configuration
// of kubeadm and of kubelets, and makes the permissions of bootstrap tokens and the ConfigMap cluster-info.
func PrepareKubeadm(ctx context.Context, w *workspace.Workspace, a *kube.APIServer) error {
	version, err := w.Parts.MachineVersion(ctx)
	if err != nil {
		return err
	}
	config, err := render("kubeadm.yaml", map[string]any{
		"Name": a.Name, "Endpoint": a.Endpoint, "Address": a.Endpoint.Addr(), "Version": version,
		"Services": services, "AllPods": allPods, "DNS": dns,
	})
	if err != nil {
		return err
	}
	file, admin := w.File(a.Name, "kubeadm.yaml"), w.File(a.Name, "kubeadm.kubeconfig")
	data, err := a.AdminKubeconfig(a.Name)
	if err := errors.Join(kube.WriteKubeconfig(admin, data, err), os.WriteFile(file, config, 0o600)); err != nil {
		return err
	}
	for _, phase := range [][]string{{"upload-config", "all"}, {"bootstrap-token", "--skip-token-print"}} {
		args := append(append([]string{"init", "phase"}, phase...), "--config="+file, "--kubeconfig="+admin)
		cmd := a.Namespace.Command(ctx, w.Parts.MachinePath("kubeadm"), args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("preparing %s: kubeadm %s: %w: %s", a.Name, phase[0], err, bytes.TrimSpace(out))
		}
	}
	return nil
}
