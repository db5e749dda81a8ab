package envoy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheusmodel "github.com/prometheus/common/model"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy/outcomes"
)

// TestOutcomes makes connections end in each way, by each route, and reads what a real Envoy counts.
func TestOutcomes(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api-1", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	down, broken := cluster(t, "down", c1.APIServer), cluster(t, "broken", freeport.Endpoint(t))
	in := newInstallation(t, 1, c1, down, broken)
	in.workload = workload
	edge := in.startEdge(t, c1)
	in.startEdge(t, broken)
	g := in.gateways[0]
	works(t, in.getBySNI, g, hostname, "api-1 "+hostname)
	works(t, in.getByConnect, g, hostname, "api-1 "+hostname)
	envoytest.Eventually(t, "the edge of the broken apiserver has a tunnel", func() error {
		if n := g.Sum(t, `^reverse_tunnel\.handshake\.accepted$`); n < 4 {
			return fmt.Errorf("%d tunnels", n)
		}
		return nil
	})
	before := counted(t, g)
	gained := func(what, route string, outcome outcomes.Outcome) {
		t.Helper()
		before[route][outcome]++
		envoytest.Eventually(t, what+", by "+route, func() error {
			if diff := cmp.Diff(before, counted(t, g)); diff != "" { // one more, and no other
				return errors.New(diff)
			}
			return nil
		})
	}
	if _, err := in.getBySNI(t.Context(), g, hostname); err != nil {
		t.Fatal(err)
	}
	gained("a request is answered", outcomes.RouteSNI, outcomes.Reached)
	if _, err := in.getByConnect(t.Context(), g, hostname); err != nil {
		t.Fatal(err)
	}
	gained("a request is answered", outcomes.RouteConnect, outcomes.Reached)
	heldFor(t, g.bind.APIServer, broken.Hostname)
	gained("the apiserver is down", outcomes.RouteSNI, outcomes.Reached)
	connectStatus(t, g, broken.Hostname+":6443")
	gained("the apiserver is down", outcomes.RouteConnect, outcomes.Reached)
	heldFor(t, g.bind.APIServer, "nothing.prod."+string(domain)) // counted nowhere
	connectStatus(t, g, "nothing.prod."+string(domain)+":6443")
	heldFor(t, g.bind.APIServer, down.Hostname)
	gained("there is no tunnel", outcomes.RouteSNI, outcomes.Failed)
	connectStatus(t, g, down.Hostname+":6443")
	gained("there is no tunnel", outcomes.RouteConnect, outcomes.Failed)
	conn := openConnect(t, g, hostname)
	edge.Kill()
	_, _ = io.Copy(io.Discard, conn)
	gained("the tunnel ends", outcomes.RouteConnect, outcomes.Broken)
}

// openConnect opens a connection to a name by CONNECT.
func openConnect(t *testing.T, g *gateway, name string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.bind.Connect.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "CONNECT %s:6443 HTTP/1.1\r\nHost: %s:6443\r\n\r\n", name, name)
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT %s: %+v, %v", name, response, err)
	}
	return conn
}

func counted(t *testing.T, g *gateway) map[string]map[outcomes.Outcome]float64 {
	t.Helper()
	text, err := g.Admin(t.Context(), http.MethodGet, "/stats/prometheus?filter="+outcomes.Stats)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes.Read(parsed(t, text))
}

func parsed(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(prometheusmodel.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func TestReadOutcomes(t *testing.T) {
	got := outcomes.Read(parsed(t, `
# TYPE envoy_clients_sni_ended counter
envoy_clients_sni_ended{flags="-"} 7
envoy_clients_sni_ended{flags="DC"} 2
envoy_clients_sni_ended{flags="UF"} 1
envoy_clients_sni_ended{flags="UF,URX"} 3
envoy_clients_sni_ended{flags="NC"} 100
# TYPE envoy_clients_sni_answered counter
envoy_clients_sni_answered{} 4
# TYPE envoy_clients_connect_ended counter
envoy_clients_connect_ended{flags="UC"} 5
envoy_clients_connect_ended{flags="URX,UF"} 6
`))
	want := map[string]map[outcomes.Outcome]float64{
		outcomes.RouteSNI:     {outcomes.Reached: 14, outcomes.Failed: 3, outcomes.Broken: 0},
		outcomes.RouteConnect: {outcomes.Reached: 0, outcomes.Failed: 6, outcomes.Broken: 5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
