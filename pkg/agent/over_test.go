package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
	"github.com/fairlead/fairlead/pkg/relay"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

func TestNothingIsLeftOfAnIdentityThatIsOver(t *testing.T) {
	c, log := newControl(t), slog.New(slog.DiscardHandler)
	r, err := relay.New(t.TempDir(), log)
	if err != nil {
		t.Fatal(err)
	}
	store, err := certs.OpenStore(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	identity := c.fresh(edgeSubject)
	c.save(store, identity)
	edge := c.edgeRole(c.token)
	m := &membership{
		figures: newFigures(),
		role:    edge, store: store, relay: r, sds: newSecretServer(), status: newStatus(Config{}), log: log,
		subjects: make(chan model.Subject, 1), identities: &identities{role: edge, store: store, log: log},
	}
	edge.sight = newSight(m.status, log)
	if err := m.apply(); err != nil {
		t.Fatal(err)
	}
	edge.sight.look([]model.Endpoint{target})
	m.status.saw(probe.Result{Address: target.String(), Healthy: true})
	m.status.configuration(relay.State{Connected: true, Cached: true, Refused: "it is of no use"})
	if s := m.status.state(); s.Node == "" || s.NotAfter == nil || s.APIServer == nil || !s.Connected || !s.Cached {
		t.Fatalf("before it was over: %+v", s)
	}

	m.bury(errOver)
	m.lookAtRelay()
	want := memberState{LastError: aboutCertificate + ": " + errOver.Error()}
	if got := m.status.state(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := m.status.report(); got.GetApiServer() != nil {
		t.Errorf("the report has the apiserver still: %v", got)
	}
	if !edge.sight.looksAt(nil) {
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
	start := func() *edgeRole { // as an agent does
		e := edgeWith(func() (EdgeCredential, error) { return EdgeCredential{Token: c.token, ID: id, CA: c.ca.CertPEM()}, nil })
		e.Way, e.log, e.foreign = way(c.address), slog.New(slog.DiscardHandler), foreignToken{path: filepath.Join(dir, foreignFile)}
		return e
	}
	var first string
	for i := range 3 {
		e := start()
		for range 2 {
			_, _, err := e.enrol(t.Context())
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
	if data, err := os.ReadFile(filepath.Join(dir, foreignFile)); err != nil || len(data) == 0 || string(data) == c.token {
		t.Errorf("on disk is %q, %v", data, err)
	}
	id = edgeSubject.ID // a person corrected the bootstrap file
	if _, _, err := start().enrol(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoTunnelsAreLeftOfAnEnvoyThatEnded(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	r, err := relay.New(filepath.Join(dir, "cache"), log)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, envoy.TunnelLog)
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &Agent{log: log, figures: newFigures(), relay: r, table: tunnels.New(tunnels.Config{Domain: domain, Log: path, Logger: log})}
	a.envoyEnded("killed", 1)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("its log is there still: %v", err)
	}
	if _, version := a.table.Snapshot(); version == 0 {
		t.Error("it is not known that there are no tunnels")
	}
}

func TestAGatewayTakesNothingThatLeadsToItsAgent(t *testing.T) {
	at := model.Endpoint{Host: "127.0.0.1", Port: 1}
	installation := model.Installation{Domain: domain, Control: at, Gateways: []model.Gateway{{Name: name}}}
	bind := envoy.GatewayBind{Public: at, APIServer: at, Connect: at}
	check := (&gatewayRole{Gateway: Gateway{Domain: domain, Name: name, Bind: bind}}).check(gateway0)
	var all []proto.Message
	for _, l := range envoy.GatewayListeners(installation, name, bind, model.Denied{}) {
		all = append(all, l)
	}
	for _, c := range envoy.GatewayClusters(installation) {
		all = append(all, c)
	}
	for _, m := range all {
		if err := check("", pack(t, m)); err != nil {
			t.Error(err)
		}
	}
	elsewhere := envoy.GatewayListeners(installation, name, envoy.GatewayBind{Public: stray, APIServer: at, Connect: at}, model.Denied{})[0]
	for what, c := range map[string]proto.Message{
		"the agent": clusterOf("agent", at), "its socket": socketOfTheMachine(), "an address that it was not given": elsewhere,
	} {
		if check("", pack(t, c)) == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

func TestAnAdminInterfaceThatNobodyHasIsNotWaitedFor(t *testing.T) {
	began := time.Now()
	if _, err := (admin{socket: filepath.Join(t.TempDir(), "x")}).patientInfo(t.Context(), nil); err == nil || time.Since(began) > adminTimeout {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}
