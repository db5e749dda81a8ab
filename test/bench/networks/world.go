package networks

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	pod        = "shell" // in every workload cluster
	sourcePort = 7000    // of the Pod: it sends bytes to every client
	// logBytes are more than any client reads.
	logBytes = 1e15
	// firstPort is the port of the first apiserver.
	firstPort = 6443
)

// world is a management network with apiservers, a remote network with a kubelet, and a gateway that both reach. Only
// apiservers without an egress selector use the direct connection between the two networks.
type world struct {
	*workspace.Workspace
	network    *netns.Network
	etcd       *proc.Process
	apiServers int // started so far
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
	authority, err := pki.NewAuthority("kubelet")
	if err != nil {
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
	_, err = kube.StartKubelet(ctx, w.Workspace, kube.KubeletSpec{
		Name: "kubelet", Namespace: w.network.Workload, Address: netns.WorkloadAddress, CA: authority, LogBytes: logBytes,
	})
	return w, err
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

// startAPIServer starts the apiserver of a subject, with a Node and a Pod. port is its number among all.
func (w *world) startAPIServer(ctx context.Context, name string, port int, flags []string) (*kube.APIServer, error) {
	a, err := kube.StartAPIServer(ctx, w.Workspace, kube.APIServerSpec{
		Name: "apiserver-" + name, Namespace: w.network.Management, Address: netns.ManagementAddress,
		Port: uint16(firstPort + port), Etcd: w.etcd, Prefix: "/" + name, Flags: flags,
	})
	if err != nil {
		return nil, err
	}
	return a, a.CreateNode(ctx, "worker", netns.WorkloadAddress, pod)
}
