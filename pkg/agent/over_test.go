package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
	"github.com/fairlead/fairlead/pkg/tunnels"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

func TestARejectedIdentityIsRemovedCompletely(t *testing.T) {
	c, log := newControl(t), slog.New(slog.DiscardHandler)
	r, err := xdsproxy.New(t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	store, err := certs.OpenStore(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	c.save(store, c.fresh(edgeSubject))
	st := status.New(status.Process)
	edge := c.edgeIn(
		t.TempDir(), st, func() (edge.Credential, error) { return edge.Credential{Token: c.token, CA: c.ca.CertPEM()}, nil },
	)
	m := &membership{
		figures: newFigures(),
		claims:  &claims{},
		role:    edge, store: store, xds: r, sds: identity.NewSecretServer(), status: st, log: log,
		subjects: make(chan model.Subject, 1), identities: identity.NewRenewer(edge, store, t.TempDir(), log),
	}
	if err := m.apply(); err != nil {
		t.Fatal(err)
	}
	target := model.Endpoint{Host: "10.0.0.10", Port: 6443}
	workload := model.WorkloadCluster{ID: edgeSubject.ID, Hostname: "c1.prod.tunnels.example.com", APIServer: target}
	inst := model.Installation{Domain: domain, Public: target, Gateways: []model.Gateway{{Name: "gateway-0"}}}
	var resources []proto.Message
	for _, c := range envoy.EdgeClusters(inst, workload, edgeSubject.Node, envoy.EdgeDial{}) {
		resources = append(resources, c)
	}
	for _, l := range envoy.EdgeListeners(inst, workload, edgeSubject.Node, envoy.EdgeDial{}) {
		resources = append(resources, l)
	}
	for _, message := range resources {
		resource, err := anypb.New(message)
		if err != nil {
			t.Fatal(err)
		}
		if err := edge.Check(edgeSubject)("", resource); err != nil {
			t.Fatal(err)
		}
	}
	if !edge.HasTunnel() {
		t.Fatal("Envoy has been given no tunnel")
	}
	m.status.SetAPIServer(probe.Result{Address: target.String(), Healthy: true})
	m.status.SetConfiguration(xdsproxy.State{Connected: true, Cached: true, Refused: "it is of no use"})
	if s := m.status.State(); s.Node == "" || s.NotAfter == nil || s.APIServer == nil || !s.Connected || !s.Cached {
		t.Fatalf("before it was over: %+v", s)
	}

	m.reject(errOver)
	m.recordConfiguration()
	want := status.Member{LastError: string(model.TroubleCertificate) + ": " + errOver.Error()}
	if got := m.status.State(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := m.status.Report(); got.GetApiServer() != nil {
		t.Errorf("the report has the apiserver still: %v", got)
	}
	if edge.HasTunnel() {
		t.Error("apiservers are looked at still")
	}
	if m.ready() == nil {
		t.Error("it is ready")
	}
}

func TestATokenOfAnotherTunnelIsUsedOnce(t *testing.T) {
	c, dir := newControl(t), t.TempDir()
	c.serve()
	id := model.NewID()
	start := func() *edge.Role { // as an agent that starts
		return c.edgeIn(dir, status.New(status.Process), func() (edge.Credential, error) {
			return edge.Credential{Token: c.token, ID: id, CA: c.ca.CertPEM()}, nil
		})
	}
	var first string
	for i := range 3 {
		e := start()
		for range 2 {
			_, _, err := e.Enrol(t.Context())
			if err == nil {
				t.Fatal("it enrolled for another tunnel")
			}
			if first == "" {
				first = err.Error()
			}
			if err.Error() != first {
				t.Errorf("got %q, want %q", err, first)
			}
		}
		if _, issued := c.counts(); issued != 1 {
			t.Fatalf("after %d starts %d leaves were issued, want 1", i+1, issued)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "foreign-token")); err != nil || len(data) == 0 ||
		string(data) == c.token {
		t.Errorf("on disk is %q, %v", data, err)
	}
	id = edgeSubject.ID // an operator corrected the bootstrap file
	if _, _, err := start().Enrol(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTheTunnelsOfAnEndedEnvoyAreRemoved(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	r, err := xdsproxy.New(filepath.Join(dir, "cache"), log)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, record.TunnelLog)
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &Agent{
		log:     log,
		figures: newFigures(),
		xds:     r,
		gateway: &gateway.Gateway{Table: tunnels.New(tunnels.Config{Domain: domain, Log: path, Logger: log})},
	}
	a.envoyEnded("killed", 1)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("its log is there still: %v", err)
	}
	if _, version := a.gateway.Table.Snapshot(); version == 0 {
		t.Error("it is not known that there are no tunnels")
	}
}
