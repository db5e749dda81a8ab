package robustness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/pods"
	"github.com/fairlead/fairlead/test/traffic"
)

const (
	// listEvery and execEvery are the intervals between the requests of a client.
	listEvery, execEvery = time.Second, 3 * time.Second
	// pulseEvery is the interval between changes that a watch observes.
	pulseEvery = 500 * time.Millisecond
	// big and pulse are the names of ConfigMaps: one that is large, and one that changes.
	big, pulse = "big", "pulse"
	// bigBytes is the size of a large ConfigMap. An apiserver accepts at most 1 MiB.
	bigBytes = 900 << 10
	// workerPort is a port of the workload network's machine, to which clients forward a port.
	workerPort = 9099
)

const (
	listPath  = "/api/v1/configmaps?limit=500"
	bigPath   = "/api/v1/namespaces/default/configmaps/" + big
	watchPath = "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=36000&fieldSelector=metadata.name=" +
		pulse
)

// furnish gives the real apiservers what clients of all kinds need: ConfigMaps, and a Node with a Pod whose commands
// run on the machine of the workload network.
func (in *installation) furnish(ctx context.Context) error {
	for _, m := range in.all() {
		if m.real == nil {
			continue
		}
		for name, size := range map[string]int{big: bigBytes, pulse: 0} {
			object := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
				Data:       map[string]string{"data": strings.Repeat("x", size)},
			}
			if err := m.real.Client.Create(ctx, object); err != nil {
				return fmt.Errorf("creating ConfigMap %s in %s: %w", name, m.name, err)
			}
		}
		if err := m.real.CreateNode(ctx, "worker", netns.WorkloadAddress, m.name); err != nil {
			return err
		}
	}
	if _, err := kube.StartKubelet(ctx, in.Workspace, kube.KubeletSpec{
		Name: "kubelet", Namespace: in.Network.Workload, Address: netns.WorkloadAddress, CA: in.SNI.CA,
	}); err != nil {
		return err
	}
	// The kubelet dials the machine itself, at whichever address.
	listener, err := in.Network.Workload.Listen(ctx, netip.AddrPortFrom(netip.IPv4Unspecified(), workerPort).String())
	if err != nil {
		return err
	}
	in.OnClose(func(context.Context) { _ = listener.Close() })
	go echo(listener)
	return nil
}

// echo answers each line with itself until the listener is closed.
func echo(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// startRealClients starts the clients that only a real apiserver can serve.
func (c *clients) startRealClients(ctx context.Context, m *member) {
	in := c.in
	c.done.Go(func() { in.repeat(ctx, pulseEvery, m.beat) })
	c.every(ctx, m, listEvery, func(p traffic.Path) {
		in.request(m, "list", p, traffic.RequestTimeout, func(ctx context.Context, s *traffic.Session, _ *Entry) error {
			body, err := s.Get(ctx, listPath)
			if err == nil && !strings.Contains(body, `"ConfigMapList"`) {
				err = fmt.Errorf("%d bytes are no list", len(body))
			}
			return err
		})
	})
	c.every(ctx, m, largeEvery, func(p traffic.Path) {
		in.request(m, "large", p, traffic.RequestTimeout, func(ctx context.Context, s *traffic.Session, _ *Entry) error {
			body, err := s.Get(ctx, bigPath)
			if err == nil && len(body) < bigBytes {
				err = fmt.Errorf("%d bytes arrived", len(body))
			}
			return err
		})
	})
	c.onEach(ctx, m, streamEvery, func(p traffic.Path) { in.watchReal(ctx, m, p) })
	c.every(ctx, m, execEvery, func(p traffic.Path) { in.exec(ctx, m, p) })
	c.every(ctx, m, execEvery, func(p traffic.Path) { in.forward(ctx, m, p) })
}

// beat changes an object that clients watch, in the apiserver's own network.
func (m *member) beat(ctx context.Context) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: pulse}}
	patch := fmt.Appendf(nil, `{"data":{"at":"%d"}}`, time.Now().UnixNano())
	// The watch is silent if this fails, and that is recorded.
	_ = m.real.Client.Patch(ctx, object, client.RawPatch("application/merge-patch+json", patch))
}

// watchReal follows a watch until it breaks or the traffic ends.
func (in *installation) watchReal(ctx context.Context, m *member, p traffic.Path) {
	id, _ := in.history.Begin(Entry{Kind: KindAsk, Client: "watch", Cluster: m.name, Path: m.describe(p)})
	answer := Entry{Kind: KindAnswer, ID: id}
	err := m.followWatch(ctx, p, &answer, func() { answer.Last = in.history.Since(time.Now()) })
	if err != nil && ctx.Err() == nil {
		answer.Error = err.Error()
	}
	in.history.Add(answer)
}

func (m *member) followWatch(ctx context.Context, p traffic.Path, answer *Entry, event func()) error {
	opening, cancel := context.WithTimeout(ctx, traffic.RequestTimeout)
	defer cancel()
	s, err := m.open(opening, p, answer)
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, s.Close)()
	err = s.Lines(watchPath, traffic.Silence, func(string) { event() })
	return fmt.Errorf("the watch broke: %w", err)
}

// pods returns a client of the member's Pod on a path.
func (m *member) pods(p traffic.Path) (*pods.Client, error) {
	return pods.NewClient(&rest.Config{
		Host: "https://" + p.Hostname,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Raw(ctx) },
		TLSClientConfig: rest.TLSClientConfig{
			Insecure: true, ServerName: p.Hostname, CertData: m.real.Admin.CertPEM, KeyData: m.real.Admin.KeyPEM,
		},
	}, m.key().Name, kube.Container)
}

// exec runs a command in a Pod to its end. Only the member's apiserver has a Pod of this name.
func (in *installation) exec(ctx context.Context, m *member, p traffic.Path) {
	ask := Entry{Kind: KindAsk, Client: "exec", Cluster: m.name, Path: m.describe(p)}
	in.attempt(ask, traffic.RequestTimeout, func(ctx context.Context, _ *Entry) error {
		c, err := m.pods(p)
		if err != nil {
			return err
		}
		return c.RunWithin(ctx, traffic.RequestTimeout)
	})
}

// forward forwards a port to the machine of a Pod, and sends a line there.
func (in *installation) forward(_ context.Context, m *member, p traffic.Path) {
	ask := Entry{Kind: KindAsk, Client: "forward", Cluster: m.name, Path: m.describe(p)}
	in.attempt(ask, traffic.RequestTimeout, func(ctx context.Context, _ *Entry) error {
		c, err := m.pods(p)
		if err != nil {
			return err
		}
		return sendForwarded(ctx, c, workerPort, func(line string) error {
			if line != forwarded {
				return fmt.Errorf("%q came back", line)
			}
			return nil
		})
	})
}

// forwarded is the line that clients send to a forwarded port.
const forwarded = "line\n"

// sendForwarded sends a line to a port of a Pod, and checks the answer. client-go opens a forwarded port without a
// deadline, so it is left behind when ctx ends: it ends with the connection, or after half a minute.
func sendForwarded(ctx context.Context, c *pods.Client, port int, check func(string) error) error {
	ended := make(chan error, 1)
	go func() {
		conn, err := c.Forward(ctx, port)
		if err != nil {
			ended <- err
			return
		}
		_, err = io.WriteString(conn, forwarded)
		line, rerr := bufio.NewReader(conn).ReadString('\n')
		if err = errors.Join(err, rerr, conn.Close()); err == nil {
			err = check(line)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// execRemote runs a command on a Node of a network, through the apiserver and its egress.
func (r *remote) execRemote(ctx context.Context) error {
	c, err := pods.NewClient(r.APIServer.Config, r.node(), kube.Container)
	if err != nil {
		return err
	}
	return c.RunWithin(ctx, traffic.RequestTimeout)
}

// forwardRemote sends a line to a Node of a network, through the apiserver and its egress. The answer names the
// network.
func (r *remote) forwardRemote(ctx context.Context, answer *Entry) error {
	c, err := pods.NewClient(r.APIServer.Config, r.node(), kube.Container)
	if err != nil {
		return err
	}
	return sendForwarded(ctx, c, hosted.EchoPort, func(line string) error {
		answer.Answer, _, _ = strings.Cut(line, "/")
		return nil
	})
}
