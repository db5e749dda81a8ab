package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

// forward has a gateway forward the clients of a workload cluster to other gateways, as its agent does; none: it uses
// its own reverse tunnels.
func (g *gateway) forward(t *testing.T, in *installation, wc model.WorkloadCluster, to ...string) {
	t.Helper()
	g.prefer(t, in, wc, to)
}

// prefer has a gateway forward to groups of gateways, the nearest first.
func (g *gateway) prefer(t *testing.T, in *installation, wc model.WorkloadCluster, groups ...[]string) {
	t.Helper()
	to := slices.Concat(groups...)
	var clusters []types.Resource
	for _, c := range envoy.TunnelClusters(in.Installation, wc) {
		tunnel, ok := envoy.TunnelOf(packed(t, c))
		if !ok {
			t.Fatalf("%s is no tunnel", c.GetName())
		}
		if len(to) > 0 {
			tunnel.Plain = tunnel.Forward(groups)
		}
		forwarding := &clusterv3.Cluster{}
		if err := tunnel.Plain.UnmarshalTo(forwarding); err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, forwarding)
	}
	g.agent.clusters = slices.DeleteFunc(g.agent.clusters, func(r types.Resource) bool {
		name := r.(*clusterv3.Cluster).GetName()
		return slices.ContainsFunc(clusters, func(c types.Resource) bool { return c.(*clusterv3.Cluster).GetName() == name })
	})
	g.agent.clusters = append(g.agent.clusters, clusters...)
	g.deny(t, in, model.Denied{})
	what := "it uses reverse tunnels"
	if len(to) > 0 {
		what = "it forwards to " + strings.Join(to, ", ")
	}
	envoytest.Eventually(t, g.name+": "+what, func() error {
		text, err := g.Admin(t.Context(), http.MethodGet, "/clusters")
		if err != nil {
			return err
		}
		for _, peer := range in.Gateways {
			if has := strings.Contains(text, wc.Hostname+"::envoy://peers/"+peer.Name); has != slices.Contains(to, peer.Name) {
				return fmt.Errorf("the endpoint of %s exists: %t", peer.Name, has)
			}
		}
		return nil
	})
}

// accessed is a line of an access log.
type accessed struct {
	Log, Listener, Upstream string
	Attempts                int
}

func (g *gateway) accessLog(t *testing.T) (all []accessed) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(g.Log(t)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line accessed
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Log == "access" {
			all = append(all, line)
		}
	}
	return all
}

// forwardedTo returns the number of clients that other gateways have forwarded to a gateway, by its access log.
func (g *gateway) forwardedTo(t *testing.T) (n int) {
	t.Helper()
	for _, line := range g.accessLog(t) {
		if line.Listener == record.OwnerPeer {
			n++
		}
	}
	return n
}

// forwarded returns how often a gateway has forwarded clients, by its access log.
func (g *gateway) forwarded(t *testing.T) (n int) {
	t.Helper()
	for _, line := range g.accessLog(t) {
		if strings.HasPrefix(line.Upstream, "envoy://peers/") {
			n += line.Attempts
		}
	}
	return n
}

// newAssigned starts gateways, and an edge of a workload cluster that dials count of them. The others forward to these.
// Each gateway has its own address. The gateways of the workload cluster come first in the result.
func newAssigned(
	t *testing.T, count, gateways int, api model.Endpoint, workload authority,
) (in *installation, wc model.WorkloadCluster, sorted []*gateway) {
	t.Helper()
	wc = cluster(t, "c1", api)
	in = newInstallation(t, gateways, wc)
	in.workload, in.AccessLog, in.GatewaysPerTunnel = workload, model.AccessLogAll, count
	for i, g := range in.Gateways {
		in.Gateways[i].Public = in.peers[g.Name].endpoint(t)
	}
	var names []string
	for _, g := range assignment.Of(wc.ID, count, in.Gateways) {
		names = append(names, g.Name)
	}
	if len(names) != count {
		t.Fatalf("the tunnel has the gateways %v, want %d", names, count)
	}
	in.startEdge(t, wc)
	for _, g := range in.gateways {
		g.bind.Version = envoy.Current
		for _, c := range envoy.PeerClusters(in.Installation) {
			g.agent.clusters = append(g.agent.clusters, c)
		}
		if slices.Contains(names, g.name) {
			g.forward(t, in, wc)
			sorted = append(sorted, g)
		}
	}
	for _, g := range in.gateways {
		if !slices.Contains(names, g.name) {
			g.forward(t, in, wc, names...)
			sorted = append(sorted, g)
		}
	}
	return in, wc, sorted
}

// TestAGatewayForwardsToOneThatHasTheTunnel has four gateways, of which two have the reverse tunnels.
func TestAGatewayForwardsToOneThatHasTheTunnel(t *testing.T) {
	workload := newAuthority(t)
	api := newAPIServer(t, "api-1", workload, "c1.prod."+string(domain))
	in, c1, gateways := newAssigned(t, 2, 4, endpoint(t, api.Listener.Addr().String()), workload)
	owners, others := gateways[:2], gateways[2:]
	routes := []func(context.Context, *gateway, string) (string, error){in.getBySNI, in.getByConnect}
	for _, g := range gateways {
		for _, get := range routes {
			works(t, get, g, c1.Hostname, "api-1 "+c1.Hostname)
		}
	}

	t.Run("a client is forwarded exactly once", func(t *testing.T) {
		requests := 0
		for range 10 {
			for _, g := range others {
				for _, get := range routes {
					if _, err := get(t.Context(), g, c1.Hostname); err != nil {
						t.Errorf("%s: %v", g.name, err)
					}
					requests++
				}
			}
		}
		// Of this test and of the requests before it.
		envoytest.Eventually(t, "the access logs of both sides have the same requests", func() error {
			from, to := others[0].forwarded(t)+others[1].forwarded(t), owners[0].forwardedTo(t)+owners[1].forwardedTo(t)
			if from != to || from < requests {
				return fmt.Errorf("%d were forwarded and %d arrived, of at least %d", from, to, requests)
			}
			return nil
		})
		if n := others[0].forwardedTo(t) + others[1].forwardedTo(t); n != 0 {
			t.Errorf("%d clients were forwarded to gateways without a reverse tunnel, want none", n)
		}
		if n := owners[0].forwarded(t) + owners[1].forwarded(t); n != 0 {
			t.Errorf("%d clients were forwarded by gateways with a reverse tunnel, want none", n)
		}
	})

	t.Run("gateways that forward to each other form no loop", func(t *testing.T) {
		a, b := others[0], others[1]
		a.forward(t, in, c1, b.name)
		b.forward(t, in, c1, a.name)
		before := a.forwardedTo(t) + b.forwardedTo(t)
		if status := connectStatus(t, a, c1.Hostname+":6443"); status != http.StatusServiceUnavailable {
			t.Errorf("CONNECT: got %d, want 503", status)
		}
		time.Sleep(time.Second) // a loop would continue
		attempts := a.forwardedTo(t) + b.forwardedTo(t) - before
		if again := b.forwardedTo(t); attempts == 0 || again != attempts+before-a.forwardedTo(t) || a.forwardedTo(t) != 0 {
			t.Errorf("%d attempts reached the other gateway, and %d came back", again, a.forwardedTo(t))
		}
		for _, g := range others {
			g.forward(t, in, c1, owners[0].name, owners[1].name)
		}
	})

	t.Run("a gateway that has had no reverse tunnel refuses a client, and the next one serves it", func(t *testing.T) {
		a, b := others[0], others[1]
		a.forward(t, in, c1)
		b.forward(t, in, c1, a.name, owners[0].name)
		before := a.forwardedTo(t)
		// Envoy tries it again after some seconds.
		envoytest.Eventually(t, "clients are forwarded to the gateway without a reverse tunnel", func() error {
			for _, get := range routes {
				if _, err := get(t.Context(), b, c1.Hostname); err != nil {
					t.Error(err)
				}
			}
			if n := a.forwardedTo(t) - before; n < 2 {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		for _, g := range others {
			g.forward(t, in, c1, owners[0].name, owners[1].name)
		}
	})

	t.Run("a connection outlasts the change to the gateway's own tunnels", func(t *testing.T) {
		g := others[0]
		client := in.keep(t, g, c1.Hostname) // get fails once this connection has ended
		client.get(t)
		g.forward(t, in, c1) // it has none: its clients wait
		client.get(t)
		g.forward(t, in, c1, owners[0].name, owners[1].name)
		client.get(t)
	})

	t.Run("no retryable request fails when a gateway with the tunnel is killed", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		var requests atomic.Int64
		defer func() {
			cancel()
			group.Wait()
		}()
		for _, g := range others {
			for _, get := range routes {
				group.Go(func() {
					for ctx.Err() == nil {
						if err := retried(t.Context(), get, g, c1.Hostname); err != nil {
							t.Errorf("%s: %v", g.name, err)
						}
						requests.Add(1)
					}
				})
			}
		}
		more := func(n int64) {
			from := requests.Load()
			envoytest.Eventually(t, "more requests", func() error {
				if now := requests.Load(); now < from+n {
					return fmt.Errorf("%d", now-from)
				}
				return nil
			})
		}
		more(8)
		owners[0].Kill()
		more(20)
	})
}

// TestAGatewayForwardsToTheNearest has a gateway that forwards, and three that have the reverse tunnels, of which two
// are nearer. The second one begins as far as the third one.
func TestAGatewayForwardsToTheNearest(t *testing.T) {
	workload := newAuthority(t)
	api := newAPIServer(t, "api-1", workload, "c1.prod."+string(domain))
	in, c1, gateways := newAssigned(t, 3, 4, endpoint(t, api.Listener.Addr().String()), workload)
	near, far, third, other := gateways[0], gateways[1], gateways[2], gateways[3]
	routes := map[string]func(context.Context, *gateway, string) (string, error){
		"by SNI": in.getBySNI, "by CONNECT": in.getByConnect,
	}
	for _, get := range routes {
		works(t, get, other, c1.Hostname, "api-1 "+c1.Hostname)
	}
	other.prefer(t, in, c1, []string{near.name}, []string{far.name})
	// requests sends some requests one after the other, and returns the longest time until an answer.
	requests := func(t *testing.T) (longest time.Duration) {
		t.Helper()
		for what, get := range routes {
			for range 10 {
				begin := time.Now()
				if err := retried(t.Context(), get, other, c1.Hostname); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				longest = max(longest, time.Since(begin))
			}
		}
		return longest
	}
	// only waits until requests are served by one gateway and not by the other.
	only := func(t *testing.T, by, not *gateway) {
		t.Helper()
		envoytest.Eventually(t, by.name+" serves all requests", func() error {
			served, others := by.forwardedTo(t), not.forwardedTo(t)
			requests(t)
			time.Sleep(500 * time.Millisecond) // the access logs are written each 200 ms
			if n, m := by.forwardedTo(t)-served, not.forwardedTo(t)-others; n != 20 || m != 0 {
				return fmt.Errorf("it serves %d of 20, and %s %d", n, not.name, m)
			}
			return nil
		})
	}
	only(t, near, far)
	t.Run("while it is away, no retryable request fails", func(t *testing.T) {
		in.peers[near.name].cut("")
		t.Logf("longest request: %s", requests(t))
		only(t, far, near)
	})
	t.Run("when it is back, it is used again", func(t *testing.T) {
		in.peers[near.name].cut(near.bind.Public.String())
		only(t, near, far)
	})
	t.Run("one of its group is enough for all clients of the group", func(t *testing.T) {
		other.prefer(t, in, c1, []string{near.name, far.name}, []string{third.name})
		in.peers[near.name].cut("")
		only(t, far, third)
	})
	t.Run("one of three is enough, and the others are not tried each time", func(t *testing.T) {
		other.prefer(t, in, c1, []string{near.name, far.name, third.name})
		in.peers[far.name].cut("")
		only(t, third, near) // after the requests that find out
		attempts := other.forwarded(t)
		requests(t)
		time.Sleep(500 * time.Millisecond) // the access logs are written each 200 ms
		if n := other.forwarded(t) - attempts; n < 20 || n > 30 {
			t.Errorf("20 requests were forwarded %d times", n)
		}
	})
}

// retried sends a request up to three times, as client-go does after an error of the connection.
func retried(
	ctx context.Context, get func(context.Context, *gateway, string) (string, error), g *gateway, host string,
) (err error) {
	for range 3 {
		if _, err = get(ctx, g, host); err == nil {
			return nil
		}
	}
	return err
}

// kept is a client with one connection.
type kept struct {
	*http.Client
	url   string
	dials int
}

// keep connects a client by the CONNECT route.
func (in *installation) keep(t *testing.T, g *gateway, host string) *kept {
	t.Helper()
	k := &kept{url: "https://" + host + ":6443/"}
	transport := &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: g.bind.Connect.String()}),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if k.dials++; k.dials > 1 {
				return nil, errors.New("the connection has ended")
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		TLSClientConfig: &tls.Config{RootCAs: in.workload.roots(), ServerName: host},
	}
	t.Cleanup(transport.CloseIdleConnections)
	k.Client = &http.Client{Transport: transport, Timeout: envoytest.Patience}
	return k
}

func (k *kept) get(t *testing.T) {
	t.Helper()
	response, err := k.Get(k.url)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = bufio.NewReader(response.Body).WriteTo(nopWriter{})
	_ = response.Body.Close()
}

type nopWriter struct{}

// Write implements io.Writer.
func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }
