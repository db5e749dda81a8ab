package hosted

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// Ports of the machines of a network.
const (
	EchoPort   = 7000 // answers with the name of the machine
	DeniedPort = 7001 // the same, and in no RemoteNetwork
	HookPort   = 9443 // a webhook
	APIPort    = 4443 // an aggregated API
)

// Ports returns the ports of a RemoteNetwork with such machines.
func Ports() []v1alpha1.NetworkPort {
	return []v1alpha1.NetworkPort{{Port: EchoPort}, {Port: APIPort}, {Port: HookPort, EndPort: kube.KubeletPort}}
}

// Network is a network with machines that no apiserver can dial.
type Network struct {
	*netns.Remote
	Name     string
	Kubelets map[string]*proc.Process // by Node

	lab *lab.Lab
}

// NewNetwork builds a network. Each machine of it answers with its own name, which begins with that of the network.
func NewNetwork(ctx context.Context, l *lab.Lab, name string, prefix netip.Prefix) (*Network, error) {
	r, err := l.Network.AddRemote(ctx, name, prefix)
	return &Network{Remote: r, Name: name, Kubelets: map[string]*proc.Process{}, lab: l}, err
}

// Edge starts an edge of a RemoteNetwork of a Cluster on a new machine of this network. It doesn't wait for it. host is
// the number of the machine in the network.
func (n *Network) Edge(
	ctx context.Context, of *ControlPlane, network, name string, host int, flags ...string,
) (*lab.Agent, *netns.Site, error) {
	site, err := n.AddEdgeHost(ctx, name, host)
	if err != nil {
		return nil, nil, err
	}
	if err := n.serve(ctx, site, name, EchoPort); err != nil {
		return nil, nil, err
	}
	bootstrap, err := of.bootstrap(ctx, network+v1alpha1.NetworkTunnelSuffix)
	if err != nil {
		return nil, nil, err
	}
	agent, err := n.lab.RunEdge(lab.EdgeSpec{
		Name: n.Name + "-" + name, Site: site.Namespace, Flags: flags, Bootstraps: [][]byte{bootstrap},
	})
	return agent, site, err
}

// Machine adds a machine that answers on EchoPort and DeniedPort.
func (n *Network) Machine(ctx context.Context, name string, host int) (*netns.Site, error) {
	site, err := n.AddMachine(ctx, name, host)
	if err != nil {
		return nil, err
	}
	if err := n.serve(ctx, site, name, EchoPort); err != nil {
		return nil, err
	}
	return site, n.serve(ctx, site, name, DeniedPort)
}

// Node starts a kubelet without containers on a new machine of the network, and gives the Cluster a Node for it and two
// Pods on it: the commands of Pod <name> run on the machine, and the logs of Pod flood-<name> have no end.
func (n *Network) Node(ctx context.Context, of *ControlPlane, name string, host int) (*netns.Site, error) {
	site, err := n.Machine(ctx, name, host)
	if err != nil {
		return nil, err
	}
	n.Kubelets[name], err = kube.StartKubelet(ctx, n.lab.Workspace, kube.KubeletSpec{
		Name: n.Name + "-" + name + "-kubelet", Namespace: site.Namespace, Address: site.Address, CA: of.APIServer.CA,
		LogBytes: 1000,
	})
	if err != nil {
		return nil, err
	}
	return site, of.APIServer.CreateNode(ctx, name, site.Address, name, "flood-"+name)
}

// Flood is a line to which EchoPort answers without end.
const Flood = "flood"

// serve answers each line that a client sends with the name of a machine, on all of its addresses.
func (n *Network) serve(ctx context.Context, at *netns.Site, machine string, port int) error {
	listener, err := at.Listen(ctx, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)).String())
	if err != nil {
		return err
	}
	n.lab.OnClose(func(context.Context) { _ = listener.Close() })
	line := fmt.Appendln(nil, n.Name+"/"+machine)
	piece := bytes.Repeat(line, 4000) // large, so that all buffers are soon full
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for in := bufio.NewScanner(conn); in.Scan(); {
					if _, err := conn.Write(line); err != nil {
						return
					}
					for in.Text() == Flood {
						if _, err := conn.Write(piece); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	return nil
}
