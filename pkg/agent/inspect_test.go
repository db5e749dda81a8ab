package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// inspection serves the newest server's state, and returns a client for it.
func (c *control) inspection() *collect.Servers {
	c.t.Helper()
	listener, err := collect.Listen("127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- collect.Serve(ctx, listener, collect.Config{Domain: domain, Hub: c.hub, Published: c.server.Status()})
	}()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	})
	servers, err := collect.Connect(c.t.Context(), collect.Options{Addresses: []string{listener.Addr().String()}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = servers.Close() })
	return servers
}

// node waits until the servers report a node as wanted.
func (c *control) node(servers *collect.Servers, name string, wanted func(collect.Node) error) (got collect.Node) {
	c.t.Helper()
	eventually.True(c.t, time.Minute, name+" is as it should be", func() error {
		nodes, err := servers.Nodes(c.t.Context(), name)
		if err != nil || len(nodes) == 0 {
			return fmt.Errorf("there are %d, %w", len(nodes), err)
		}
		got = nodes[0]
		return wanted(got)
	})
	return got
}

func synced(n collect.Node) error {
	for _, r := range n.Resources {
		if r.Status != collect.Synced {
			return fmt.Errorf("%s is %s: %s", r.Name, r.Status, r.Refusal)
		}
	}
	if !slices.ContainsFunc(n.Resources, func(r collect.Resource) bool { return r.TypeURL == resourcev3.ListenerType }) {
		return errors.New("there is no listener yet")
	}
	return nil
}

func TestInspectionShowsTheConfigurationOfEnvoys(t *testing.T) {
	c := newWorld(t)
	c.serve()
	g, e := newGateway(c), newEdge(c)
	// A second enrolment in the same Envoy, which the first one's installation must not see.
	second := model.NewID()
	e.add(second, c.tunnel("c2", second, freeport.Endpoint(t)))
	g.child.MetricsListen = freeport.Endpoint(t).String()
	g.agent()
	g.ready()
	e.agent()
	e.ready()
	servers := c.inspection()

	gateway := c.node(servers, name, synced)
	if gateway.Role != model.RoleGateway || gateway.Version == "" || gateway.Connected.IsZero() {
		t.Errorf("got %+v", gateway)
	}
	var fleet collect.Fleet
	eventually.True(t, time.Minute, "the tunnels are known with their round-trip times", func() (err error) {
		if fleet, err = servers.Fleet(t.Context(), edgeSubject.ID); err != nil || len(fleet.Tunnels) < 2 ||
			len(fleet.Edges) != 1 {
			return fmt.Errorf("%w, %+v", err, fleet)
		}
		return nil
	})
	for _, tunnel := range fleet.Tunnels {
		if tunnel.RTT <= 0 || tunnel.RTT > 10*time.Second || tunnel.Worker == "" || time.Since(tunnel.Since) > time.Hour ||
			tunnel.ID != edgeSubject.ID {
			t.Errorf("got %+v", tunnel)
		}
	}
	perCluster(t, g.child.MetricsListen)
	full(t, g.child.MetricsListen)
	edge := c.node(servers, fleet.Edges[0].Node, synced)
	if edge.ID != edgeSubject.ID || edge.Role != model.RoleEdge {
		t.Errorf("got %+v", edge)
	}
	eventually.True(t, time.Minute, "the edge probes its apiserver on request", func() error {
		looks, err := servers.ProbeAPIServers(t.Context(), edgeSubject.ID)
		if err != nil || len(looks) != 1 || looks[0].Node != edge.Name || looks[0].APIServer == nil ||
			!strings.Contains(looks[0].APIServer.Message, "nothing listens there") {
			return fmt.Errorf("%w: %+v", err, looks)
		}
		return nil
	})
	c.runsWhatWasSent(servers, gateway)
	c.runsWhatWasSent(servers, edge)
	c.relayOf(servers, gateway)
	c.relayOf(servers, edge)
	if _, err := servers.Relay(t.Context(), "edge-nobody"); !errors.Is(err, collect.ErrNotConnected) {
		t.Errorf("got %v", err)
	}
	if _, err := servers.Dump(t.Context(), "edge-nobody"); !errors.Is(err, collect.ErrNotConnected) {
		t.Errorf("got %v", err)
	}
}

// perCluster waits for the series of a workload cluster at a gateway: its tunnels and its round-trip time.
func perCluster(t *testing.T, address string) {
	t.Helper()
	eventually.True(t, time.Minute, "a scrape has them", func() error {
		families, err := scrape(t.Context(), address)
		if err != nil {
			return err
		}
		for _, name := range []string{"fairlead_gateway_cluster_tunnels", "fairlead_gateway_cluster_round_trip_seconds"} {
			var found float64
			for _, series := range families[name].GetMetric() {
				if series.GetLabel()[0].GetValue() == edgeSubject.ID {
					found = series.GetGauge().GetValue()
				}
			}
			if found <= 0 || found >= 10 {
				return fmt.Errorf("%s is %v", name, found)
			}
		}
		return nil
	})
}

// full waits for the series that tell how full a gateway is: a real Envoy has the statistics and threads with the names
// that they are read from.
func full(t *testing.T, address string) {
	t.Helper()
	eventually.True(t, time.Minute, "a scrape has the used part of each limit, and the time of each worker", func() error {
		families, err := scrape(t.Context(), address)
		if err != nil {
			return err
		}
		limits := map[string]float64{}
		for _, series := range families["fairlead_gateway_full_ratio"].GetMetric() {
			limits[series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
		}
		memory, found := limits["memory"] // Envoy rounds it to percents, so it may be 0
		_, tunnels := limits["tunnels"]
		if !found || memory >= 1 || limits["connections"] <= 0 || limits["public_connections"] <= 0 || !tunnels {
			return fmt.Errorf("the limits are %v", limits)
		}
		workers := families["fairlead_gateway_worker_cpu_seconds_total"].GetMetric()
		if len(workers) != 1 || workers[0].GetCounter().GetValue() <= 0 {
			return fmt.Errorf("the workers are %v", workers)
		}
		return nil
	})
}

func scrape(ctx context.Context, address string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(promodel.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}

// runsWhatWasSent compares the configuration of an Envoy with what it was sent, and checks that it contains no
// secrets.
func (c *control) runsWhatWasSent(servers *collect.Servers, node collect.Node) {
	c.t.Helper()
	dump, err := servers.Dump(c.t.Context(), node.Name)
	if err != nil {
		c.t.Fatal(err)
	}
	running := map[string]collect.Running{}
	for _, r := range dump.Running {
		running[r.Name] = r
		for _, secret := range []string{"PRIVATE KEY", "BEGIN CERTIFICATE", c.token, "private_key\""} {
			if strings.Contains(string(r.Config), secret) {
				c.t.Errorf("what %s runs as %s has %q in it", node.Name, r.Name, secret)
			}
		}
	}
	if len(running) != len(node.Resources) {
		c.t.Errorf("%s runs %d resources, was sent %d", node.Name, len(running), len(node.Resources))
	}
	for _, sent := range node.Resources {
		r, there := running[sent.Name]
		if !there || r.Version != sent.Version || r.TypeURL != sent.TypeURL {
			c.t.Errorf("%s runs %+v of %s, was sent version %s", node.Name, r, sent.Name, sent.Version)
			continue
		}
		if r.Form != "" || sent.TypeURL != resourcev3.ClusterType {
			continue
		}
		sent.Config = envoy.Plain(sent.Config)
		if !proto.Equal(clusterFrom(c.t, r.Config), unpacked(c.t, sent)) {
			c.t.Errorf("%s runs another form of %s", node.Name, sent.Name)
		}
	}
}

// relayOf checks that the state of a node's relay is about this node alone.
func (c *control) relayOf(servers *collect.Servers, node collect.Node) {
	c.t.Helper()
	eventually.True(c.t, time.Minute, "the relay of "+node.Name+" has nothing left to send", func() error {
		text, err := servers.Relay(c.t.Context(), node.Name)
		if err != nil || !strings.Contains(text, "\nenvoy listeners have=") || strings.Contains(text, "todo=") ||
			!strings.Contains(text, "\nupstream "+node.Name+" ") || strings.Count(text, "upstream ") != 1 {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	})
}

func clusterFrom(t *testing.T, text json.RawMessage) *clusterv3.Cluster {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "@type")
	bare, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	cluster := &clusterv3.Cluster{}
	if err := protojson.Unmarshal(bare, cluster); err != nil {
		t.Fatal(err)
	}
	return cluster
}

func unpacked(t *testing.T, r collect.Resource) *clusterv3.Cluster {
	t.Helper()
	cluster := &clusterv3.Cluster{}
	if err := r.Config.UnmarshalTo(cluster); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// TestInspectionShowsRejectedResources uses an address that is in use, which our checks cannot detect and Envoy
// rejects.
func TestInspectionShowsRejectedResources(t *testing.T) {
	c := newWorld(t)
	c.serve()
	taken, err := net.Listen("tcp", c.bind.Connect.String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	g := newGateway(c)
	g.agent()
	servers := c.inspection()
	began := time.Now()
	node := c.node(servers, name, func(n collect.Node) error {
		if i := slices.IndexFunc(n.Resources, func(r collect.Resource) bool { return r.Status == collect.Rejected }); i < 0 {
			return errors.New("nothing is refused")
		}
		return nil
	})
	for _, r := range node.Resources {
		switch refused := r.Status == collect.Rejected; {
		case r.Name != "connect":
			if refused {
				t.Errorf("%s is refused too: %s", r.Name, r.Refusal)
			}
		case !strings.Contains(r.Refusal, "cannot bind") || r.Refused != r.Version || r.Since.Before(
			began.Add(-time.Minute)) || r.Since.After(time.Now().Add(time.Second)):
			t.Errorf("got %+v", r)
		}
	}
}

func TestInspectionShowsWhichEnvoyDoesNotAnswer(t *testing.T) {
	c := newWorld(t)
	c.serve()
	g := newGateway(c)
	agent := g.agent()
	g.ready()
	servers := c.inspection()
	c.node(servers, name, synced)
	if err := agent.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.tunnel("c9", model.NewID(), freeport.Endpoint(t))
	hostname := "c9.prod." + string(domain)
	c.node(servers, name, func(n collect.Node) error {
		i := slices.IndexFunc(n.Resources, func(r collect.Resource) bool { return r.Name == hostname })
		if i < 0 || n.Resources[i].Status != collect.Stale || n.Resources[i].Since.IsZero() {
			return fmt.Errorf("it is %+v", n.Resources)
		}
		return nil
	})
	nodes, err := servers.Resources(t.Context(), hostname)
	if err != nil || len(nodes) != 1 || len(nodes[0].Resources) != 1 || nodes[0].Resources[0].Status != collect.Stale {
		t.Errorf("got %+v, %v", nodes, err)
	}
	if err := agent.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.node(servers, name, synced)
}
