package lab

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/test/lab/infra"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// secondPublicName is the name of the second installation's gateways in the workload network.
const secondPublicName = "gateway.second.test"

// secondGateways is the number of the second installation's first gateway in the workload network.
const secondGateways = 5

// NewSecond is New for a second installation. It has its own management network, and its own gateways on the same
// workload network. The machines and the workload apiservers are the same. It must be closed before the first lab.
func (l *Lab) NewSecond(ctx context.Context, options Options) (*Lab, error) {
	second, err := build(ctx, options, l)
	if err != nil {
		return nil, fmt.Errorf("making a second installation: %w", err)
	}
	if l.Cloud != nil {
		return second, l.Cloud.AddName(secondPublicName, second.Network.PublicAddresses()...)
	}
	return second, nil
}

// network creates the lab's network, which may share the workload network of another lab.
func (l *Lab) network(ctx context.Context, name string, beside *Lab) (*netns.Network, error) {
	if beside == nil {
		network, err := netns.NewNetwork(ctx, name, l.options.Family, l.options.Gateways)
		if err == nil && l.options.Machines {
			l.Cloud = infra.NewCloud(l.Workspace, network)
		}
		return network, err
	}
	l.Cloud = beside.Cloud
	return beside.Network.NewBeside(ctx, name, secondPublicName, secondGateways, l.options.Gateways)
}

// forwardPort is the port in the management network of the first installation that leads to the apiserver of the
// second.
const forwardPort = 16443

// SecondKubeconfig makes the management cluster of a second installation reachable from the first one's, like a
// machine of an administrator that reaches both, and writes a kubeconfig for it there. It works until the lab is
// closed.
func (l *Lab) SecondKubeconfig(ctx context.Context, second *Lab) (string, error) {
	address := netns.HostPort("127.0.0.1", forwardPort)
	listener, err := l.Network.Management.Listen(ctx, address)
	if err != nil {
		return "", fmt.Errorf("forwarding to the second installation: %w", err)
	}
	l.OnClose(func(context.Context) { _ = listener.Close() })
	go netns.ForwardAll(listener, func() (net.Conn, error) {
		return second.Network.Management.DialContext(context.Background(), "tcp", second.Management.Endpoint.String())
	})
	kubeconfig, err := kube.Kubeconfig("second", "https://"+address, second.Management.CA.CertPEM,
		clientcmdapi.AuthInfo{
			ClientCertificateData: second.Management.Admin.CertPEM,
			ClientKeyData:         second.Management.Admin.KeyPEM,
		})
	file := l.File("second.kubeconfig")
	return file, kube.WriteKubeconfig(file, kubeconfig, err)
}

// joining matches what move prepare prints for the edges of one Tunnel: the Tunnel, and the input of edge-agent join.
var joining = regexp.MustCompile(`(?s)at each of these edges of (\S+) run[^\n]*\nedge-agent join <<'EOF'\n(.*?)EOF\n`)

// Joining returns what edges are to join according to the output of fairlead move prepare: by Tunnel, the input of
// edge-agent join.
func Joining(out string) map[string]string {
	all := map[string]string{}
	for _, found := range joining.FindAllStringSubmatch(out, -1) {
		all[found[1]] = found[2]
	}
	return all
}

// RedactJoining returns the output of fairlead move prepare without these inputs, which contain tokens.
func RedactJoining(out string) string { return joining.ReplaceAllString(out, "(command for $1)\n") }

// joined matches what edge-agent join prints.
var joined = regexp.MustCompile(`(?m)^joined (\S+) as `)

// Join runs edge-agent join where an agent runs, and returns the name of the tunnel there, for Leave.
func (l *Lab) Join(ctx context.Context, agent *Agent, input string) (string, error) {
	out, err := l.atEdge(ctx, agent, input, "join")
	if err != nil {
		return "", err
	}
	found := joined.FindStringSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("joining a tunnel: edge-agent join prints %q", out)
	}
	return found[1], nil
}

// Leave runs edge-agent leave where an agent runs.
func (l *Lab) Leave(ctx context.Context, agent *Agent, name string) error {
	_, err := l.atEdge(ctx, agent, "", "leave", name)
	return err
}

func (l *Lab) atEdge(ctx context.Context, agent *Agent, input string, args ...string) (string, error) {
	cmd := agent.Process().Namespace.Command(
		ctx, l.Parts.OwnPath("edge-agent"), append(args, "--state-dir="+agent.StateDir)...,
	)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("running edge-agent %s: %w: %s", args[0], err, out)
	}
	return string(out), err
}
