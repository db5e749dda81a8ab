package networks

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/world"
)

// Ports of the machines of a network.
const (
	echoPort   = hosted.EchoPort
	deniedPort = hosted.DeniedPort
)

// remote is a network with machines that no apiserver can dial.
type remote struct{ *hosted.Network }

// newRemote builds a network. Each machine of it answers with its own name, which begins with that of the network.
func newRemote(t *testing.T, w *world.World, name, prefix string) *remote {
	t.Helper()
	r, err := hosted.NewNetwork(t.Context(), w.Lab, name, netip.MustParsePrefix(prefix))
	must(t, err)
	return &remote{r}
}

// edge starts an edge of a RemoteNetwork on a machine of this network.
func (r *remote) edge(
	t *testing.T, of *controlPlane, name string, host int, network string, flags ...string,
) (*lab.Agent, *netns.Site) {
	t.Helper()
	agent, site, err := r.Edge(t.Context(), of.ControlPlane, network, name, host, flags...)
	must(t, err)
	return agent, site
}

// machine adds a machine that answers on echoPort and deniedPort.
func (r *remote) machine(t *testing.T, name string, host int) *netns.Site {
	t.Helper()
	site, err := r.Machine(t.Context(), name, host)
	must(t, err)
	return site
}

// node adds a machine with a kubelet, a Node of the Cluster and its Pods.
func (r *remote) node(t *testing.T, of *controlPlane, name string, host int) *netns.Site {
	t.Helper()
	site, err := r.Node(t.Context(), of.ControlPlane, name, host)
	must(t, err)
	return site
}

// ask returns the name that serve answers with.
func ask(conn net.Conn) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(oneByte{conn}).ReadString('\n')
	_ = conn.SetDeadline(time.Time{})
	return strings.TrimSpace(line), err
}

// authority returns the host:port of a machine.
func authority(at *netns.Site, port int) string {
	return net.JoinHostPort(at.Address.String(), strconv.Itoa(port))
}
