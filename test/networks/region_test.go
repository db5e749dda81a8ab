package networks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

const (
	guestPort = 8080
	// gracePeriod is the time without a report of a kubelet after which its Node counts as lost.
	gracePeriod = 20 * time.Second
	// imagesEnv is the environment variable with the folder of the images; by default it is bin/test/images.
	imagesEnv  = "FAIRLEAD_IMAGES"
	edgeImage  = "registry.example.com/fairlead/fairlead-edge:v0.1.0"
	guestImage = "registry.example.com/guest:v1"
	// edgePods is the namespace of the DaemonSets that fairlead network join prints.
	edgePods = "fairlead-network"
)

// region is a network of real machines behind a router that translates addresses. Its machines reach the public port of
// the gateways, and nothing else.
type region struct {
	*cluster.Site
	of     *controlPlane
	name   string // also of its RemoteNetwork
	prefix netip.Prefix
	first  int // number of its first node
	edge   *cluster.Machine
	units  []*proc.Service // of the edge: Envoy and the agent
	own    []*proc.Service // of the edge on the first node, if that has one
	nodes  []*cluster.Node
}

// pods returns the network of the Pods of all of the region's nodes.
func (r *region) pods() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(r.first), 0}), 20)
}

// endpoint returns the address of the apiserver, which no machine of the region can dial: kubelets have it from
// Cluster API, and Pods from the Service kubernetes.
func (r *region) endpoint() netip.AddrPort { return r.of.APIServer.Endpoint }

// node returns a node by its name.
func (r *region) node(name string) *cluster.Node {
	for _, n := range r.nodes {
		if n.Name == name {
			return n
		}
	}
	panic("no node " + name)
}

// newKubeadmHosted starts a hosted control plane that kubelets can join, and tells Cluster API that it runs.
func newKubeadmHosted(t *testing.T, w *world.World, name string, host int) *controlPlane {
	t.Helper()
	pki := func(file string) string { return filepath.Join(w.File(name), file) }
	h := newHosted(t, w, name, host,
		"--allow-privileged=true", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true",
		"--endpoint-reconciler-type=lease", // the Service kubernetes has the apiserver's own address
		"--kubelet-client-certificate="+pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+pki("apiserver-kubelet-client.key"),
	)
	must(t, cluster.RunControllers(w.Workspace, h.APIServer))
	must(t, cluster.PrepareKubeadm(t.Context(), w.Workspace, h.APIServer))
	must(t, h.SetProvisioned(t.Context()))
	return h
}

// announce creates the RemoteNetwork of a region.
func (r *region) announce(t *testing.T) {
	t.Helper()
	r.of.network(t, r.name, v1alpha1.RemoteNetworkSpec{
		CIDRs: []string{r.prefix.String(), r.pods().String()},
		Ports: []v1alpha1.NetworkPort{{Port: kube.KubeletPort}, {Port: hosted.APIPort}, {Port: hosted.HookPort}},
	})
}

// start builds the network of the region, with an edge on a machine of its own: the units of systemd. The router sends
// packets for the apiserver to this machine.
func (r *region) start(ctx context.Context, guest v1.Image) (err error) {
	w := r.of.world
	if r.Site, err = cluster.NewSite(ctx, w.Workspace, r.of.APIServer, r.name, r.prefix); err != nil {
		return err
	}
	if err := w.Network.Behind(ctx, r.Segment, w.Parts.RealPath("nft")); err != nil {
		return err
	}
	r.SetHost(w.Network.PublicName, w.Network.PublicAddresses()...)
	if err := r.Images().LoadImage(ctx, guest, guestImage); err != nil {
		return err
	}
	if r.edge, err = r.StartMachine(ctx, r.name+"-edge"); err != nil {
		return err
	}
	if r.units, err = r.runUnits(ctx, r.edge); err != nil {
		return err
	}
	address := r.endpoint().Addr()
	return r.Segment.Route(ctx, netip.PrefixFrom(address, address.BitLen()), r.edge.Address)
}

// runUnits makes a machine an edge, by the commands of docs/hosted-control-planes.md, and gives it the address of the
// apiserver.
func (r *region) runUnits(ctx context.Context, m *cluster.Machine) ([]*proc.Service, error) {
	w := r.of.world
	if err := m.InstallPrograms(ctx, w.Program("edge-agent"), w.EnvoyPath()); err != nil {
		return nil, err
	}
	if err := r.addEndpoint(ctx, m); err != nil {
		return nil, err
	}
	script, err := r.join(ctx, "systemd", r.endpoint().String())
	if err != nil {
		return nil, err
	}
	if out, err := m.Run(ctx, script, "sh"); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	const starts = "daemon-reload\nenable edge-agent\nreload-or-restart edge-agent\n"
	if calls, err := m.SystemctlCalls(ctx); err != nil || calls != starts {
		return nil, fmt.Errorf("network join calls systemctl with %q, want %q: %w", calls, starts, err)
	}
	var units []*proc.Service
	for _, name := range []string{"edge-envoy", "edge-agent"} {
		unit, err := m.StartUnit(name)
		if err != nil {
			return nil, err
		}
		units = append(units, unit)
	}
	return units, nil
}

// addEndpoint gives a machine the address of the apiserver, so that its own edge accepts connections to it.
func (r *region) addEndpoint(ctx context.Context, m *cluster.Machine) error {
	_, err := m.Run(ctx, "", "ip", "address", "add", r.endpoint().Addr().String()+"/32", "dev", "lo")
	return err
}

// join returns the command that starts an edge of the region in a form.
func (r *region) join(ctx context.Context, form, listen string, flags ...string) (string, error) {
	args := append([]string{
		"network", "join", "-n", world.Namespace, r.name, "--form=" + form, "--apiserver-listen=" + listen,
	}, flags...)
	out, err := r.of.world.Exec(ctx, args...)
	if err != nil {
		return "", fmt.Errorf("fairlead %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}

// addNode starts a machine for a new Machine of Cluster API, with its bootstrap data. If alone, an edge on the machine
// itself is its way to the apiserver, otherwise the edge of the region. It returns when Cluster API knows the Node.
func (r *region) addNode(ctx context.Context, name string, alone bool) error {
	n, err := r.StartNode(ctx, name, r.first+len(r.nodes))
	if err != nil {
		return err
	}
	r.nodes = append(r.nodes, n)
	if alone {
		if r.own, err = r.runUnits(ctx, &n.Machine); err != nil {
			return err
		}
	}
	data, err := r.createMachine(ctx, n)
	if err != nil {
		return err
	}
	if err := r.provisioned(ctx, n); err != nil {
		return err
	}
	if err := n.Boot(ctx, data); err != nil {
		return err
	}
	return proc.Wait(ctx, time.Minute, r.running(n))
}

// loadEdge adds the image of edges to the region's registry.
func (r *region) loadEdge(ctx context.Context) error {
	dir := cmp.Or(os.Getenv(imagesEnv), filepath.Join(r.of.world.Root(), "bin", "test", "images"))
	return r.Images().Load(ctx, filepath.Join(dir, "fairlead-edge"), edgeImage)
}

// killEnvoy kills the Envoy of an edge in a Pod of a node.
func killEnvoy(n *cluster.Node) error {
	pids, err := n.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
		if err == nil && strings.TrimSpace(string(name)) == "envoy" {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no Envoy runs in a Pod of %s", n.Name)
}

// readySince returns since when a Node is Ready.
func (h *controlPlane) readySince(ctx context.Context, name string) (time.Time, error) {
	node := &corev1.Node{}
	if err := h.APIServer.Client.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return time.Time{}, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, nil
		}
	}
	return time.Time{}, fmt.Errorf("node %s is not Ready: %+v", name, node.Status.Conditions)
}

// runs returns a condition that is nil once a Pod is ready.
func (h *controlPlane) runs(namespace, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		pod := &corev1.Pod{}
		at := types.NamespacedName{Namespace: namespace, Name: name}
		if err := h.APIServer.Client.Get(ctx, at, pod); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("Pod %s is not ready: %+v", at, pod.Status)
	}
}

// install creates the objects of YAML documents.
func (h *controlPlane) install(ctx context.Context, manifests string) error {
	objects, err := kube.ParseObjects([]byte(manifests))
	if err != nil {
		return err
	}
	var errs []error
	for _, object := range objects {
		errs = append(errs, h.APIServer.Client.Create(ctx, object))
	}
	return errors.Join(errs...)
}
