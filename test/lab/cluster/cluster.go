// Package cluster runs real Kubernetes clusters whose nodes are namespaces of this machine: etcd and the control plane
// in one network namespace, and containerd, a kubelet and kube-proxy for each node in namespaces of its own, with
// CoreDNS and a registry. Input: Options, and images. Output: a Cluster with an administrator's client and its Nodes.
// Pods are real: their containers have images, control groups, seccomp and a network. It requires root, and removes
// everything that it creates. Clusters are independent of each other, and several run side by side. It does not know
// Fairlead, Cluster API or any test framework.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/cgroup"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// Addresses. Each cluster has its own namespaces, so all clusters use the same values.
var (
	machines = netip.MustParsePrefix("172.30.0.0/24")
	allPods  = netip.MustParsePrefix("10.244.0.0/16")
	services = netip.MustParsePrefix("10.96.0.0/16")
	dns      = netip.MustParseAddr("10.96.0.10")
)

// maxNodes is bounded by the memory of a machine for tests rather than by addresses.
const maxNodes = 9

// Options configure a cluster. The zero value is a cluster with one node.
type Options struct {
	// Name is the name of the cluster in its kubeconfig; cluster by default.
	Name string
	// Nodes is the number of nodes, at most 9; one by default.
	Nodes int
	// Hosts are names that Pods resolve beside the cluster's own, and their addresses. It may be nil: see SetHost.
	Hosts map[string]netip.Addr
}

// FirstBalancer is the address of the first Service of type LoadBalancer in a cluster.
var FirstBalancer = netns.AddressAt(netns.OfferedPrefix, 1)

// Cluster is a running cluster.
type Cluster struct {
	*kube.APIServer
	*workspace.Workspace

	name     string
	groups   cgroup.Hierarchies
	segment  *netns.Segment
	kubelets *pki.Authority // of the certificates between the apiserver and kubelets
	names    *netns.DNS     // of everything outside of the cluster
	held     atomic.Bool    // new Services of type LoadBalancer get no address

	mu       sync.Mutex
	nodes    []*Node
	machines int // how many Machines there are
}

// Start finds the programs, removes what killed tests left behind, starts a cluster, and returns when its nodes and its
// DNS are ready. If it fails, it removes everything, and the error contains the end of the log that matters.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Name == "" {
		options.Name = "cluster"
	}
	options.Nodes = max(options.Nodes, 1)
	if options.Nodes > maxNodes {
		return nil, fmt.Errorf("starting a cluster: %d nodes are more than %d", options.Nodes, maxNodes)
	}
	parts, err := workspace.FindClusterParts()
	if err != nil {
		return nil, err
	}
	w, err := workspace.NewWith(ctx, parts)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Workspace: w, name: options.Name}
	if err := c.start(ctx, options); err != nil {
		err = fmt.Errorf("starting cluster %s: %w", c.name, err)
		if logs, kept := c.KeepLogs(); kept == nil {
			err = fmt.Errorf("%w\nthe logs are in %s", err, logs)
		}
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, options Options) (err error) {
	if c.groups, err = cgroup.Find(); err != nil {
		return err
	}
	if c.segment, err = netns.NewSegment(ctx, c.Workspace.Name, machines); err != nil {
		return err
	}
	if err := errors.Join(c.startNames(ctx, options.Hosts), c.startRegistry(ctx)); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.loadOwnImages(groupCtx) })
	group.Go(func() error { return c.startControlPlane(groupCtx) })
	if err := group.Wait(); err != nil {
		return err
	}
	for i := range options.Nodes {
		c.nodes = append(c.nodes, c.newNode(i+1))
	}
	group, groupCtx = errgroup.WithContext(ctx)
	for _, node := range c.nodes {
		group.Go(func() error { return node.start(groupCtx) })
	}
	group.Go(func() error { return c.installDNS(groupCtx) })
	if err := errors.Join(group.Wait(), c.routeServices(ctx)); err != nil {
		return err
	}
	c.startBalancer()
	return c.WaitDeployment(ctx, types.NamespacedName{Namespace: "kube-system", Name: "coredns"})
}

// routeServices makes the control plane's machine reach Services: kube-proxy on each node does the rest.
func (c *Cluster) routeServices(ctx context.Context) error {
	var nodes []netip.Addr
	for _, node := range c.Nodes() {
		nodes = append(nodes, node.Address)
	}
	return c.segment.Route(ctx, services, nodes...)
}

// Nodes returns the nodes that have not been removed.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Kubeconfig returns the administrator's kubeconfig. Its address is valid in the cluster's own networks: see Kubectl.
func (c *Cluster) Kubeconfig() string { return c.File("admin.kubeconfig") }

// Registry returns the address at which the nodes reach the cluster's registry. It serves the images of every registry
// name, and no node pulls from elsewhere.
func (c *Cluster) Registry() netip.AddrPort {
	return netip.AddrPortFrom(c.segment.Gateway(), registryPort)
}

// startNames serves the names outside of the cluster in its router, which the cluster's DNS queries.
func (c *Cluster) startNames(ctx context.Context, hosts map[string]netip.Addr) (err error) {
	if c.names, err = c.segment.Router.ListenDNS(ctx, c.segment.Gateway().String()); err != nil {
		return err
	}
	c.OnClose(func(context.Context) { c.names.Close() })
	for name, address := range hosts {
		c.SetHost(name, address)
	}
	return nil
}

// SetHost makes Pods and Machines resolve a name outside of the cluster to addresses. Without addresses the name does
// not exist. Earlier answers are cached for at most 5 seconds.
func (c *Cluster) SetHost(name string, addresses ...netip.Addr) { c.names.Set(name, addresses...) }

// Reach lets this cluster's nodes and Pods open connections to the addresses of another cluster's Services of type
// LoadBalancer, and to nothing else of it. The other cluster can open none in return.
func (c *Cluster) Reach(ctx context.Context, other *Cluster) error {
	if err := c.segment.Reach(ctx, other.segment, c.Parts.RealPath("nft")); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", c.name, other.name, err)
	}
	return nil
}

// FromRouter opens and closes a connection from the router of the cluster's networks.
func (c *Cluster) FromRouter(ctx context.Context, address string) error {
	conn, err := c.segment.Router.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// readyTime bounds waiting for Pods: they pull images, and other tests may use the processors.
const readyTime = 2 * time.Minute

// WaitDeployment waits until all replicas of a Deployment are available.
func (c *Cluster) WaitDeployment(ctx context.Context, name types.NamespacedName) error {
	err := proc.Wait(ctx, readyTime, func(ctx context.Context) error {
		deployment := &appsv1.Deployment{}
		if err := c.Client.Get(ctx, name, deployment); err != nil {
			return err
		}
		status := deployment.Status
		if want := *deployment.Spec.Replicas; status.AvailableReplicas != want || status.UpdatedReplicas != want ||
			status.Replicas != want || status.ObservedGeneration < deployment.Generation {
			return fmt.Errorf("%d of %d replicas are available", status.AvailableReplicas, want)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("waiting for Deployment %s: %w", name, err)
	}
	return nil
}

// Stop stops the cluster, and removes its processes, networks, control groups and files. It may be called again. After
// an error the next Start of any process removes what is left, once this process has ended.
func (c *Cluster) Stop(ctx context.Context) error {
	for _, node := range c.Nodes() {
		node.stop()
	}
	c.RunClosers(ctx)
	if c.segment != nil {
		c.segment.Close(ctx)
	}
	return errors.Join(c.groups.Remove(ctx, c.Workspace.Name), os.RemoveAll(c.Dir))
}

// RemoveNode stops a node at once, as the loss of its machine does, and deletes its Node object.
func (c *Cluster) RemoveNode(ctx context.Context, n *Node) error {
	return errors.Join(c.removeNode(ctx, n), c.routeServices(ctx))
}

func (c *Cluster) removeNode(ctx context.Context, n *Node) error {
	n.stop()
	c.segment.RemoveMachine(ctx, n.Namespace)
	c.mu.Lock()
	c.nodes = slices.DeleteFunc(c.nodes, func(other *Node) bool { return other == n })
	c.mu.Unlock()
	return errors.Join(c.groups.Remove(ctx, n.group()), c.deleteNode(ctx, n.Name), os.RemoveAll(n.dir))
}

// IsPod reports whether an address belongs to the network of Pods.
func IsPod(address netip.Addr) bool { return allPods.Contains(address) }

// IsService reports whether an address belongs to the network of Services. No packet has it on the way to a Pod: a node
// replaces it, unless the Service has no endpoint.
func IsService(address netip.Addr) bool { return services.Contains(address) }

// podsOf returns the addresses of the Pods of a node.
func podsOf(number int) netip.Prefix {
	bytes := allPods.Addr().As4()
	bytes[2] = byte(number)
	return netip.PrefixFrom(netip.AddrFrom4(bytes), 24)
}

// folder makes a folder of the cluster.
func (c *Cluster) folder(elements ...string) (string, error) {
	dir := c.File(elements...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making a folder: %w", err)
	}
	return dir, nil
}

func nodeName(number int) string { return "node-" + strconv.Itoa(number) }

func write(dir, name string, data []byte) error {
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}
