package collect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/reporttest"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// published is an xds-server that has sent nothing.
type published struct {
	statusv3.UnimplementedClientStatusDiscoveryServiceServer
}

// Resources implements Published.
func (published) Resources([]string, bool, func(*statusv3.ClientConfig) error) error { return nil }

// TestReportsOfAHubAreObserved passes the reports of an edge and of a gateway through a real hub, its service and its
// client.
func TestReportsOfAHubAreObserved(t *testing.T) {
	t.Parallel()
	w := reporttest.NewWorld(t)
	w.Rules.SetGateways("gateway-0")
	hub := reporthub.New(reporttest.Domain, w.Rules, w.Log)
	place := w.Place(t)
	place.Start(t, hub)
	listener, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reporttest.Background(t, func(ctx context.Context) error {
		return Serve(ctx, listener, Config{Domain: reporttest.Domain, Hub: hub, Published: published{}})
	})
	startAgents(t, w, place.Address)

	servers, err := Connect(t.Context(), Options{Addresses: []string{listener.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	var fleet Fleet
	eventually.True(t, reporttest.Patience, "both are observed", func() (err error) {
		fleet, err = servers.Observe(t.Context(), reporttest.IDA, nil)
		if err == nil && (len(fleet.Edges) != 1 || len(fleet.Tunnels) != 1) {
			err = fmt.Errorf("got %+v", fleet)
		}
		return err
	})
	if e := fleet.Edge("edge-1"); e == nil || !e.Connected || e.LastError != "disk: full" || e.Since.IsZero() {
		t.Errorf("edge: %+v", e)
	}
	if g := fleet.Gateways[0]; g.Name != "gateway-0" || !g.Connected || !g.Installed || !g.Ready || g.Problem != "" {
		t.Errorf("gateway: %+v", g)
	}
	if tunnel := fleet.Tunnels[0]; tunnel.Node != "edge-1" || tunnel.Worker != "worker_0" || tunnel.ID != reporttest.IDA {
		t.Errorf("tunnel: %+v", tunnel)
	}
	looks, err := servers.ProbeAPIServers(t.Context(), reporttest.IDA)
	if err != nil || len(looks) != 1 || looks[0].APIServer == nil || looks[0].APIServer.Address != "10.0.0.1:6443" {
		t.Errorf("looks: %+v, %v", looks, err)
	}
	proofs, err := servers.Prove(t.Context(), model.EdgeRef{Node: "edge-1", ID: reporttest.IDA})
	if err != nil || len(proofs) != 1 || proofs[0].Proof == nil || proofs[0].Proof.GetDenied() {
		t.Errorf("proofs: %+v, %v", proofs, err)
	}
}

// startAgents runs the reporting of an edge and a gateway. The tunnel exists only in a file.
func startAgents(t *testing.T, w *reporttest.World, address string) {
	t.Helper()
	edge, gateway := reporttest.EdgeOf("edge-1", reporttest.IDA), reporttest.GatewayOf("gateway-0")
	toEdge, toGateway := w.Dial(t, &edge, address), w.Dial(t, &gateway, address)
	reporttest.Background(t, func(ctx context.Context) error {
		return reportagent.SendEdge(ctx, toEdge, reportagent.EdgeSource{
			Report: func() *reportv1.EdgeReport { return &reportv1.EdgeReport{LastError: "disk: full"} },
			See: func(context.Context) (*reportv1.APIServer, error) {
				return &reportv1.APIServer{Address: "10.0.0.1:6443", Healthy: true}, nil
			},
		}, w.Log)
	})
	path := filepath.Join(t.TempDir(), "tunnels.log")
	line := fmt.Sprintf(
		`{"owner":"tunnel","local":"192.0.2.1:1","peer":"198.51.100.1:1","time":"2026-01-01T12:00:00.000Z","id":%q,`+
			`"event":"tunnel_setup","node":"CN=edge-1","worker":"worker_0"}`+"\n",
		reporttest.Domain.TunnelID(reporttest.IDA),
	)
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	table := tunnels.New(tunnels.Config{
		Domain: reporttest.Domain, Log: path, Reopen: func(context.Context) error { return nil }, Logger: w.Log,
	})
	reporttest.Background(t, table.Run)
	never := make(chan struct{})
	reporttest.Background(t, func(ctx context.Context) error {
		return reportagent.SendGateway(ctx, toGateway, reportagent.GatewaySource{
			Table: table,
			State: func() (reportagent.GatewayState, <-chan struct{}) {
				return reportagent.GatewayState{Ready: true}, never
			},
		}, w.Log)
	})
}
