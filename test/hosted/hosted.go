// Package hosted is Clusters whose control planes run in the management network while their machines are in networks
// that no apiserver can dial. Its input is a running lab. Its output is control planes, networks with edges and
// machines, and what Services of such a Cluster lead to. It does not know any test framework.
package hosted

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// Spec describes a hosted control plane.
type Spec struct {
	Name, Namespace string // of its Cluster
	// Host is the last byte of its address in the management network.
	Host int
	// Flags are added to those of its apiserver.
	Flags []string
}

// ControlPlane is a Cluster whose control plane runs in the management network.
type ControlPlane struct {
	*lab.Cluster
	Site   *netns.Site
	Admin  []byte     // kubeconfig
	Egress *lab.Agent // beside the apiserver; nil before Enrol
	Socket string     // through which the apiserver dials

	lab *lab.Lab
}

// New starts an apiserver in the management network and creates its Cluster.
func New(ctx context.Context, l *lab.Lab, spec Spec) (*ControlPlane, error) {
	c := &ControlPlane{Socket: l.File(spec.Name + ".sock"), lab: l}
	var err error
	if c.Site, err = l.Network.AddHosted(ctx, spec.Name, spec.Host); err != nil {
		return nil, err
	}
	selector := kube.EgressSelector("HTTPConnect", c.Socket)
	apiServer, err := StartAPIServer(ctx, l, c.Site, spec.Name, selector, spec.Flags...)
	if err != nil {
		return nil, err
	}
	if c.Admin, err = apiServer.AdminKubeconfig(spec.Name); err != nil {
		return nil, err
	}
	c.Cluster, err = l.CreateCluster(ctx, lab.ClusterSpec{
		Name: spec.Name, Namespace: spec.Namespace, APIServer: apiServer, Labels: map[string]string{"hosted": "true"},
	})
	return c, err
}

// Of returns the control plane of a Cluster that exists, whose apiserver runs at a site.
func Of(l *lab.Lab, c *lab.Cluster, at *netns.Site) *ControlPlane {
	return &ControlPlane{Cluster: c, Site: at, Socket: l.File(c.Name + ".sock"), lab: l}
}

// StartAPIServer starts an etcd and an apiserver that dials Nodes, webhooks and aggregated APIs as an egress selector
// states. flags are added to its own.
func StartAPIServer(
	ctx context.Context, l *lab.Lab, at *netns.Site, name string, selector []byte, flags ...string,
) (*kube.APIServer, error) {
	etcd, err := kube.StartEtcd(ctx, l.Workspace, at.Namespace)
	if err != nil {
		return nil, err
	}
	file := l.File(name + "-egress.yaml")
	if err := os.WriteFile(file, selector, 0o644); err != nil {
		return nil, fmt.Errorf("writing the egress selector of %s: %w", name, err)
	}
	pki := func(file string) string { return filepath.Join(l.File(name), file) }
	return kube.StartAPIServer(ctx, l.Workspace, kube.APIServerSpec{
		Name: name, Namespace: at.Namespace, Address: at.Address, Port: 6443, Etcd: etcd, Prefix: "/" + name,
		NotAfter: time.Now().AddDate(1, 0, 0), // of real apiservers; status warns of an end within two weeks
		Flags: append([]string{
			"--egress-selector-config-file=" + file, "--enable-aggregator-routing=true",
			"--requestheader-client-ca-file=" + pki("ca.crt"), "--requestheader-username-headers=X-Remote-User",
			"--requestheader-allowed-names=front-proxy",
			"--proxy-client-cert-file=" + pki("apiserver.crt"), "--proxy-client-key-file=" + pki("apiserver.key"),
		}, flags...),
	})
}

// Enrol starts the Envoy beside the apiserver. It doesn't wait for it. The Cluster must have a RemoteNetwork.
func (c *ControlPlane) Enrol(ctx context.Context) error { return c.EnrolAs(ctx, c.Name+"-egress") }

// EnrolAs is Enrol with another name, and so with another state folder.
func (c *ControlPlane) EnrolAs(ctx context.Context, name string) error {
	bootstrap, err := c.bootstrap(ctx, c.Name+v1alpha1.EgressTunnelSuffix)
	if err != nil {
		return err
	}
	c.Egress, err = c.lab.RunEdge(lab.EdgeSpec{
		Name: name, Site: c.Site.Namespace, Flags: []string{"--egress-socket=" + c.Socket},
		Bootstraps: [][]byte{bootstrap},
	})
	return err
}

// bootstrap waits for the bootstrap file of a Tunnel.
func (c *ControlPlane) bootstrap(ctx context.Context, tunnel string) ([]byte, error) {
	return c.lab.Cluster(types.NamespacedName{Namespace: c.Namespace, Name: tunnel}).Bootstrap(ctx)
}

// CreateNetwork creates a RemoteNetwork of the Cluster.
func (c *ControlPlane) CreateNetwork(
	ctx context.Context, name string, spec v1alpha1.RemoteNetworkSpec,
) (*v1alpha1.RemoteNetwork, error) {
	spec.ClusterName = c.Name
	n := &v1alpha1.RemoteNetwork{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}, Spec: spec}
	return n, c.lab.Management.Client.Create(ctx, n)
}

// Kubectl runs kubectl with the administrator's kubeconfig of this Cluster.
func (c *ControlPlane) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.lab.Kubectl(ctx, c.Admin, args...)
}

// Apply applies objects to the Cluster.
func (c *ControlPlane) Apply(ctx context.Context, manifest string) error {
	cmd, err := c.lab.KubectlCommand(ctx, c.Admin, "apply", "-f", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running kubectl apply: %w: %s", err, out)
	}
	return nil
}

// RunsOn returns a condition that is nil once a command in the Pod of a Node runs on the machine with its address.
func (c *ControlPlane) RunsOn(node string, at *netns.Site) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, "exec", node, "--", "ip", "-4", "-o", "address")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if !strings.Contains(out, " "+at.Address.String()+"/") {
			return fmt.Errorf("the command ran on a machine without the address %s:\n%s", at.Address, out)
		}
		return nil
	}
}

// caBundle returns the CA of the Cluster as manifests contain it.
func (c *ControlPlane) caBundle() string {
	return base64.StdEncoding.EncodeToString(c.APIServer.CA.CertPEM)
}
