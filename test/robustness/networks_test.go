package robustness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// remote is a Cluster with a network that its apiserver cannot dial, and a machine there.
type remote struct {
	*hosted.ControlPlane
	network *hosted.Network
	machine *netns.Site
	edge    *lab.Agent
	site    *netns.Site // of the edge
	real    bool        // it has a real apiserver, and its machine a kubelet
	// crossed is a planted bug: the socket through which clients dial instead.
	crossed atomic.Pointer[string]
}

// remotePrefix is the addresses of every network. They are the same, so that only Fairlead keeps them apart.
var remotePrefix = netip.MustParsePrefix("10.77.0.0/24")

const (
	edgeHost, machineHost = 2, 5 // the numbers of machines in a network
	// firstHosted is the last byte of the address of the first hosted control plane.
	firstHosted = 100
)

// startNetworks starts the Clusters of Networks. The last one has a real apiserver.
func (in *installation) startNetworks(ctx context.Context) error {
	for i, name := range Networks {
		r, err := in.startNetwork(ctx, name, firstHosted+i, i == len(Networks)-1)
		if err != nil {
			return fmt.Errorf("starting the network %s: %w", name, err)
		}
		in.remotes = append(in.remotes, r)
	}
	return nil
}

func (in *installation) startNetwork(ctx context.Context, name string, host int, realOne bool) (*remote, error) {
	r := &remote{real: realOne}
	var err error
	if realOne {
		r.ControlPlane, err = hosted.New(ctx, in.Lab, hosted.Spec{Name: name, Namespace: world.Namespace, Host: host})
	} else {
		r.ControlPlane, err = in.hostStandIn(ctx, name, host)
	}
	if err != nil {
		return nil, err
	}
	if err := r.SetProvisioned(ctx); err != nil { // or clusterctl moves no Cluster of the namespace
		return nil, err
	}
	if r.network, err = hosted.NewNetwork(ctx, in.Lab, name+"-net", remotePrefix); err != nil {
		return nil, err
	}
	add := func() (*netns.Site, error) { return r.network.Machine(ctx, r.node(), machineHost) }
	if realOne {
		add = func() (*netns.Site, error) { return r.network.Node(ctx, r.ControlPlane, r.node(), machineHost) }
	}
	if r.machine, err = add(); err != nil {
		return nil, err
	}
	spec := v1alpha1.RemoteNetworkSpec{CIDRs: []string{remotePrefix.String()}, Ports: hosted.Ports()}
	if _, err := r.CreateNetwork(ctx, name, spec); err != nil {
		return nil, err
	}
	if err := r.Enrol(ctx); err != nil {
		return nil, err
	}
	if r.edge, r.site, err = r.network.Edge(ctx, r.ControlPlane, name, "edge", edgeHost); err != nil {
		return nil, err
	}
	return r, proc.Wait(ctx, patience, func(ctx context.Context) error { return r.ask(ctx, &Entry{}) })
}

// hostStandIn creates a Cluster whose apiserver is a stand-in in the management network.
func (in *installation) hostStandIn(ctx context.Context, name string, host int) (*hosted.ControlPlane, error) {
	site, err := in.Network.AddHosted(ctx, name, host)
	if err != nil {
		return nil, err
	}
	s := in.StandIn(in.t, name, site.Namespace, site.Address)
	cluster, err := in.CreateCluster(ctx, lab.ClusterSpec{
		Name: name, Namespace: world.Namespace, APIServer: s.APIServer, Labels: map[string]string{"hosted": "true"},
	})
	return hosted.Of(in.Lab, cluster, site), err
}

// node returns the name of the machine of the network.
func (r *remote) node() string { return "node-" + r.Name }

// expected is the text with which the machines of a network begin their answers.
func (r *remote) expected() string { return r.network.Name }

// dial opens a connection to the machine of the network as the apiserver does.
func (r *remote) dial(ctx context.Context) (net.Conn, error) {
	socket := r.Socket
	if crossed := r.crossed.Load(); crossed != nil {
		socket = *crossed
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	authority := net.JoinHostPort(r.machine.Address.String(), strconv.Itoa(hosted.EchoPort))
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// The machine sends nothing before it is asked, so nothing of it is in this buffer.
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("CONNECT %s: the answer is %s", authority, response.Status)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// ask asks which network answers on a new connection.
func (r *remote) ask(ctx context.Context, answer *Entry) error {
	conn, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return askLine(conn, bufio.NewReader(conn), answer)
}

func askLine(conn net.Conn, lines *bufio.Reader, answer *Entry) error {
	if _, err := io.WriteString(conn, "who\n"); err != nil {
		return err
	}
	line, err := lines.ReadString('\n')
	if err == nil {
		answer.Answer, _, _ = strings.Cut(line, "/")
	}
	return err
}

// follow asks again and again on one connection, until it breaks or the traffic ends.
func (r *remote) follow(ctx context.Context, answer *Entry, answered func()) error {
	opening, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	conn, err := r.dial(opening)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewReader(conn); ; {
		_ = conn.SetDeadline(time.Now().Add(traffic.Silence))
		if err := askLine(conn, lines, answer); err != nil {
			return fmt.Errorf("the connection broke: %w", err)
		}
		answered()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pulseEvery):
		}
	}
}

// ready reports whether the network is ready.
func (r *remote) ready(ctx context.Context, management client.Client) (bool, error) {
	n := &v1alpha1.RemoteNetwork{}
	err := management.Get(ctx, r.NamespacedName, n)
	return meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.ConditionReady), err
}

// startNetworkClients starts the clients of a network.
func (c *clients) startNetworkClients(ctx context.Context, r *remote) {
	in := c.in
	repeat := func(every time.Duration, do func()) { c.done.Go(func() { atIntervals(ctx, every, do) }) }
	request := func(every time.Duration, do func()) { repeat(every, func() { c.done.Go(do) }) }
	ask := Entry{Kind: KindAsk, Cluster: r.Name, Path: EgressPath}
	of := func(client string) Entry { ask.Client = client; return ask }
	short, exec, forward, stream := of("short"), of("exec"), of("forward"), of("watch")
	request(shortEvery, func() { in.attempt(short, traffic.RequestTimeout, r.ask) })
	repeat(streamEvery, func() {
		id, _ := in.history.Begin(stream)
		answer := Entry{Kind: KindAnswer, ID: id}
		if err := r.follow(ctx, &answer, func() { answer.Last = in.history.Since(time.Now()) }); err != nil {
			answer.Error = err.Error()
		}
		in.history.Add(answer)
	})
	if r.real {
		request(execEvery, func() {
			in.attempt(exec, traffic.RequestTimeout, func(ctx context.Context, _ *Entry) error { return r.execRemote(ctx) })
		})
		request(execEvery, func() { in.attempt(forward, traffic.RequestTimeout, r.forwardRemote) })
	}
}

// agent returns the agent that a target names: that of the edge, or the one beside the apiserver.
func (r *remote) agent(which string) *lab.Agent {
	if which == "egress" {
		return r.Egress
	}
	return r.edge
}

// remote returns a Cluster with a network; nil: there is none of this name.
func (in *installation) remote(name string) *remote {
	for _, r := range in.remotes {
		if r.Name == name {
			return r
		}
	}
	return nil
}
