package status

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// fixedIdentity is a leaf that is never renewed.
type fixedIdentity struct{ identity certs.Identity }

// Identity implements certs.Source.
func (f fixedIdentity) Identity() (certs.Identity, error) { return f.identity, nil }

// admitAll admits every agent.
type admitAll struct{}

// Admit implements reporthub.Admission.
func (admitAll) Admit(model.Subject) error { return nil }

// Gateways implements reporthub.Admission.
func (admitAll) Gateways() []string { return nil }

// Denied implements reporthub.Admission.
func (admitAll) Denied() (model.Denied, <-chan struct{}) { return model.Denied{}, nil }

// hubWorld is an installation with a CA in its own namespace.
type hubWorld struct {
	t      *testing.T
	m      client.WithWatch
	config config.Config
}

func newHubWorld(t *testing.T, m client.WithWatch) *hubWorld {
	t.Helper()
	w := &hubWorld{t: t, m: m, config: controllertest.Config()}
	w.config.Namespace = kubetest.NewNamespace(t, m)
	d := reconciler.Deps{
		Config:   w.config,
		Client:   m,
		Live:     m,
		Recorder: events.NewFakeRecorder(10),
		Log:      slog.New(slog.DiscardHandler),
		Now:      time.Now,
	}
	ended := records.NewEndedTunnels(m, m, w.config.Namespace, time.Now)
	if _, err := ca.New(d, ended).Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	return w
}

// identify issues a leaf with the CA that signs for its role.
func (w *hubWorld) identify(subject model.Subject) certs.Source {
	w.t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	ca, err := ca.Load(w.t.Context(), w.config, w.m, subject.Role, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: subject.Node, DNSNames: w.config.Domain.DNSNames(subject), Server: true, Client: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		w.t.Fatal(err)
	}
	return fixedIdentity{identity}
}

// serveHub runs a real hub behind the TLS of an xds-server, and returns its address.
func (w *hubWorld) serveHub() model.Endpoint {
	w.t.Helper()
	hub := reporthub.New(w.config.Domain, admitAll{}, slog.New(slog.DiscardHandler))
	server := grpc.NewServer(
		grpc.Creds(
			credentials.NewTLS(
				certs.ServerTLS(
					w.identify(model.ControlSubject()), ca.PublishedTrust{From: w.m, Namespace: w.config.Namespace}, records.GraceTime,
				),
			),
		),
	)
	reportv1.RegisterReportServer(server, hub)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	go server.Serve(listener) //nolint:errcheck // it ends when it is stopped
	w.t.Cleanup(func() { hub.Close(); server.Stop() })
	at, err := model.ParseEndpoint(listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

func (w *hubWorld) connect(to model.Endpoint, subject model.Subject) *grpc.ClientConn {
	w.t.Helper()
	conn, err := dial.Conn(
		&dial.Dialer{Addresses: []model.Endpoint{to}}, w.config.Domain,
		ca.PublishedTrust{From: w.m, Namespace: w.config.Namespace}, w.identify(subject),
	)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// TestReportsBecomeStatus runs a real hub, an edge and a gateway that report to it over TLS, and the
// controller's own view with its self-issued leaf. It checks the status.
func TestReportsBecomeStatus(t *testing.T) {
	w := newHubWorld(t, controllertest.APIServer(t))
	w.config.XDSServer = w.serveHub()
	const ahead = 5 * time.Minute
	w.config.Now = func() time.Time { return time.Now().Add(ahead) } // as if the apiserver's clock were
	changed := workqueue.NewTyped[string]()
	view := NewView(w.config, w.m, w.m, slog.New(slog.DiscardHandler), changed)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- view.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		changed.ShutDown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	l := newLiveWorld(t)
	l.r.view = view
	id := controllertest.Read(t, l.m, controllertest.TunnelNamed(l.cluster)).Spec.ID
	edge, gateway := model.Subject{
		Role: model.RoleEdge,
		Node: controllertest.TestNode,
		ID:   id,
	}, model.Subject{
		Role: model.RoleGateway,
		Node: "gateway-0",
	}
	go func() {
		current := &reportv1.EdgeReport{
			Form:      "Process",
			Version:   "v9",
			ApiServer: &reportv1.APIServer{Address: "127.0.0.1:6443", Healthy: true, Version: "v1.36.1"},
		}
		_ = reportagent.SendEdge(
			ctx, w.connect(w.config.XDSServer, edge),
			reportagent.EdgeSource{Report: func() *reportv1.EdgeReport { return current }}, slog.New(slog.DiscardHandler),
		)
	}()
	stream, err := reportv1.NewReportClient(w.connect(w.config.XDSServer, gateway)).Gateway(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tunnels := []*reportv1.Tunnel{
		{Key: "192.0.2.1:1", Node: controllertest.TestNode, TunnelId: id},
		{Key: "192.0.2.1:2", Node: controllertest.TestNode, TunnelId: id},
	}
	if err := stream.Send(&reportv1.GatewayReport{Snapshot: true, Tunnels: tunnels}); err != nil {
		t.Fatal(err)
	}
	expect := func(kind, reason string) *v1alpha1.Tunnel {
		t.Helper()
		var tunnel *v1alpha1.Tunnel
		controllertest.Eventually(t, func() error {
			tunnel = l.reconcileAfter(2 * time.Second)
			if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind); c == nil || c.Reason != reason {
				return fmt.Errorf("condition %s is %+v", kind, c)
			}
			return nil
		})
		return tunnel
	}
	expect(v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonReachable)
	tunnel := expect(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonConnected)
	e := records.EdgeOf(tunnel.Status.Edges, controllertest.TestNode)
	if e == nil || e.Version != "v9" || len(e.Gateways) != 1 || e.Gateways[0].Tunnels != 2 || e.APIServer == nil ||
		e.APIServer.Version != "v1.36.1" {
		t.Fatalf("edge %+v", e)
	}
	if !apimeta.IsStatusConditionPresentAndEqual(
		tunnel.Status.Conditions, v1alpha1.ConditionEnrolled, metav1.ConditionTrue,
	) {
		t.Errorf("conditions %+v", tunnel.Status.Conditions)
	}
	if since := view.Tunnel(id).Edges[0].Since; (time.Until(since) - ahead).Abs() > time.Minute {
		t.Errorf("the edge is connected since %s, which is not by the apiserver's clock", since)
	}
	begin := time.Now()
	if err := stream.Send(&reportv1.GatewayReport{Closed: []string{tunnels[0].Key, tunnels[1].Key}}); err != nil {
		t.Fatal(err)
	}
	expect(v1alpha1.ConditionTunnelReady, v1alpha1.ReasonNoTunnel)
	t.Logf("noticed after %s", time.Since(begin).Round(time.Millisecond))
	var woken []string
	for changed.Len() > 0 {
		which, _ := changed.Get()
		changed.Done(which)
		woken = append(woken, which)
	}
	if len(woken) == 0 || len(woken) > 3 {
		t.Errorf("woken: %q", woken)
	}
}
