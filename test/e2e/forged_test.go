package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// forgedEnvoy runs a real Envoy with a bootstrap that its owner has written. It obtains berlin's identity from berlin's
// agent, and claims an arbitrary tunnel id.
func (w *world) forgedEnvoy(t *testing.T) {
	berlin, tokyo := subjectOf(t, w.berlin.edge.StateDir), subjectOf(t, w.tokyo.edge.StateDir)
	promise.That(
		t,
		"an Envoy with a handwritten bootstrap serves the tunnel that its certificate names",
		func(t *testing.T) {
			forged := w.startForged(t, berlin.Node, berlin.ID, w.SNI)
			defer forged.Kill()
			// berlin's own tunnels are gone, and the forged Envoy would get its tunnels at once
			must(t, w.berlin.edge.KillEnvoy())
			w.brokenNow()
			eventually(t, w.berlin.works)
		},
	)
	promise.That(
		t,
		"an Envoy that claims a tunnel ID that its certificate lacks receives no traffic",
		func(t *testing.T) {
			forged := w.startForged(t, berlin.Node, tokyo.ID, w.Connect)
			defer forged.Kill()
			w.downWithout(t, w.tokyo)
		},
	)
	promise.That(t, "an Envoy that claims both IDs of another edge receives no traffic", func(t *testing.T) {
		forged := w.startForged(t, tokyo.Node, tokyo.ID, w.Connect)
		defer forged.Kill()
		w.downWithout(t, w.tokyo)
	})
}

// startForged starts the Envoy beside berlin's own in the same folder, so that it can use the agent's socket.
func (w *world) startForged(t *testing.T, node, id string, apiServer *kube.APIServer) *proc.Process {
	t.Helper()
	public := model.Endpoint{Host: netns.PublicName, Port: netns.PublicPort}
	installation := model.Installation{Domain: domain, Public: public, Gateways: []model.Gateway{{Name: "gateway-0"}}}
	victim := model.WorkloadCluster{
		ID:        id,
		APIServer: model.Endpoint{Host: apiServer.Endpoint.Addr().String(), Port: apiServer.Endpoint.Port()},
	}
	bootstrap := envoy.Static(
		envoy.EdgeBootstrap(envoy.BootstrapConfig{}), envoy.EdgeListeners(installation, victim, node, envoy.EdgeDial{}),
		envoy.EdgeClusters(installation, victim, node, envoy.EdgeDial{}),
	)
	bootstrap.Admin = nil
	data, err := protojson.Marshal(bootstrap)
	must(t, err)
	// Berlin's agent has only berlin's secrets, whatever the Envoy claims.
	claimed, trusted := sds.Names(model.Subject{Role: model.RoleEdge, Node: node, ID: id})
	own, trust := sds.Names(subjectOf(t, w.berlin.edge.StateDir))
	data = []byte(strings.NewReplacer(claimed, own, trusted, trust).Replace(string(data)))
	file := filepath.Join(t.TempDir(), "forged.json")
	must(t, os.WriteFile(file, data, 0o600))
	forged, err := proc.Start(proc.Spec{
		Name: "forged-envoy", Namespace: w.Network.Workload, Program: w.EnvoyPath(), Dir: w.berlin.edge.StateDir,
		Log:  w.LogFile("forged-envoy"),
		Args: []string{"-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "info"},
	})
	must(t, err)
	must(t, forged.WaitReady(t.Context(), patience, func(context.Context) error {
		return proc.HasText(w.LogFile("forged-envoy"), "all dependencies initialized")
	}))
	return forged
}

// downWithout stops a member's edge, and fails the test if the member is still reachable.
func (w *world) downWithout(t *testing.T, m *member) {
	t.Helper()
	m.edge.Hold()
	must(t, m.edge.KillEnvoy())
	w.brokenNow()
	defer func() {
		m.edge.Resume()
		eventually(t, m.works)
	}()
	never(t, 2*calm(), "the forged Envoy receives the other edge's traffic", m.works)
}
