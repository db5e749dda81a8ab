package envoy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestUnusedTunnelsAreDialledAnew: an edge replaces a reverse tunnel that has waited for its first client, and no
// other, and no request fails because of that.
func TestUnusedTunnelsAreDialledAnew(t *testing.T) {
	const wait, lanes = time.Second, 3
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api-0", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	in.withLanes(t, lanes)
	s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: c1.ID}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, s)
	config := edgeConfig(in.Installation, c1, s.Node, envoy.EdgeDial{Version: envoy.Current})
	for i, l := range config.GetStaticResources().GetListeners() {
		renewed := &listenerv3.Listener{}
		if err := envoy.RenewUnused(packed(t, l), wait).UnmarshalTo(renewed); err != nil {
			t.Fatal(err)
		}
		config.StaticResources.Listeners[i] = renewed
	}
	edge := envoytest.Start(t, dir, marshal(t, config), "--component-log-level", envoy.ComponentLogLevel)
	works(t, in.getBySNI, in.gateways[0], hostname, "api-0 "+hostname)

	client := in.client(in.gateways[0], hostname)
	reused := false
	onTheSame := func() {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(got httptrace.GotConnInfo) { reused = got.Reused },
		})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+hostname, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	onTheSame()
	begin := time.Now()
	l := in.load(t, hostname)
	const renewals = 4
	envoytest.Eventually(t, "unused reverse tunnels were dialled anew several times", func() error {
		n := edge.Sum(t, "^listener[.]tunnel_.*[.]downstream_cx_transport_socket_connect_timeout$")
		if n < renewals {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	envoytest.Eventually(t, "the edge has all reverse tunnels", func() error {
		if n := edge.Sum(t, "^listener[.]tunnel_.*[.]downstream_cx_active$"); n < 2+lanes {
			return fmt.Errorf("it has %d", n)
		}
		return nil
	})
	l.stop()
	if c := l.count(begin, time.Now()); c.failed > 0 || c.all == 0 {
		t.Errorf("%v, want none failed", c)
	}
	time.Sleep(time.Until(begin.Add(3 * wait)))
	if onTheSame(); !reused {
		t.Error("a used reverse tunnel was replaced")
	}
}
