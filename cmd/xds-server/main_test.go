package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/features"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/internal/tracetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// start runs the program, then the controller, and waits until the program is ready. After an installation, the program
// waits for the controller in the same way.
func start(t *testing.T, m *management) (at model.Endpoint, stop func()) {
	t.Helper()
	at, health := freeport.Endpoint(t), freeport.Endpoint(t)
	if m.xdsServer != (model.Endpoint{}) {
		at = m.xdsServer
	}
	args := arguments(map[string]string{
		"--listen": at.String(), "--health-listen": health.String(), "--kubeconfig": m.kubeconfig(t),
		"--state-dir":      t.TempDir(),
		"--inspect-listen": m.inspect, "--otlp-endpoint": m.otlp, "--metrics-listen": m.metrics,
	})
	if m.metrics != "" {
		args = append(args, "--per-cluster-metrics")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	var log logtest.Journal // a handler whose client has gone may write its last line after the program has ended
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, args, &out, &log) }()
	stop = func() {
		cancel()
		select {
		case code := <-ended:
			if code != 0 || strings.Contains(log.String(), "PRIVATE KEY") || strings.Contains(log.String(), "CERTIFICATE---") {
				t.Errorf("exit code %d, log:\n%s", code, log.String())
			}
			ended <- code
		case <-time.After(kubetest.Patience):
			t.Error("it has not ended")
		}
	}
	t.Cleanup(stop)
	kubetest.Eventually(t, "being alive", func() error { return get(t, health, "/healthz") })
	if err := get(t, health, "/readyz"); err == nil {
		t.Error("it calls itself ready without a certificate")
	}
	m.startController(t) // not earlier: the program sets klog's logger, which the controller shares here
	kubetest.Eventually(t, "getting ready", func() error { return get(t, health, "/readyz") })
	return at, stop
}

// subscribe opens an ADS stream and returns the names of the Envoy clusters that it receives.
func subscribe(
	t *testing.T, at model.Endpoint, identity certs.Identity, bundle []byte,
) (discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, []string, error) {
	t.Helper()
	roots, err := certs.Bundle(bundle).Roots()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(at.String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: domain.Control(), Certificates: []tls.Certificate{identity.TLSCertificate()},
		MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), kubetest.Patience)
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, nil, err
	}
	bind := envoy.GatewayBind{
		Public: freeport.Endpoint(t), APIServer: freeport.Endpoint(t), Connect: freeport.Endpoint(t),
	}
	node := &corev3.Node{Id: model.NodeID(identity.Leaf().Subject.CommonName), Metadata: bind.Metadata()}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resourcev3.ClusterType}); err != nil {
		t.Logf("sending: %v", err) // Recv returns the reason
	}
	response, err := stream.Recv()
	names := map[string]bool{}
	for _, r := range response.GetResources() {
		names[r.GetName()] = true
	}
	return stream, slices.Sorted(maps.Keys(names)), err
}

// secret waits for a Secret.
func (m *management) secret(t *testing.T, namespace, name string) map[string][]byte {
	t.Helper()
	var secret corev1.Secret
	kubetest.Eventually(t, "secret "+name, func() error {
		return m.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &secret)
	})
	return secret.Data
}

// The test uses a real kube-apiserver, the deployed permissions, and the real controller.
func TestAClusterBecomesTheConfigurationOfItsEdge(t *testing.T) {
	m := newManagement(t)
	collector := tracetest.Start(t)
	scraped := freeport.Endpoint(t)
	m.inspect, m.otlp, m.metrics = freeport.Endpoint(t).String(), collector.Endpoint, scraped.String()
	at, stop := start(t, m)
	if features.FeatureGates().Enabled(features.WatchListClient) {
		t.Error("the informers read streaming lists")
	}
	cluster := kubetest.Cluster("default", "c1")
	if err := m.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	secret := m.secret(t, "default", "c1"+v1alpha1.BootstrapSecretSuffix)
	token, bundle := string(secret[v1alpha1.BootstrapTokenKey]), secret[v1alpha1.BootstrapCAKey]
	service := enrolclient.Client{
		Dialer: &dial.Dialer{Addresses: []model.Endpoint{at}},
		Domain: domain,
		Trust:  certs.Bundle(bundle),
	}

	var edge certs.Identity
	kubetest.Eventually(t, "enrolling the edge", func() (err error) {
		edge, _, err = service.EnrolEdge(t.Context(), token, "node-1")
		return err
	})
	stream, names, err := subscribe(t, at, edge, bundle)
	node := edge.Leaf().Subject.CommonName
	if err != nil || !slices.Equal(names, []string{"apiserver_" + node, "gateway-0_" + node}) {
		t.Errorf("the edge got %v and %v", names, err)
	}

	credential := enrolclient.GatewayCredential{
		Token: string(m.secret(t, "fairlead-system", v1alpha1.GatewaySecretName)[v1alpha1.BootstrapTokenKey]),
	}
	var gateway certs.Identity
	kubetest.Eventually(t, "enrolling the gateway", func() (err error) {
		gateway, _, err = service.EnrolGateway(t.Context(), "gateway-0", credential)
		return err
	})
	if _, names, err := subscribe(t, at, gateway, bundle); err != nil ||
		!slices.Contains(names, "c1.default.tunnels.example.com") {
		t.Errorf("the gateway got %v and %v", names, err)
	}
	if _, _, err := service.EnrolGateway(t.Context(), "gateway-0",
		enrolclient.GatewayCredential{Token: token}); !errors.Is(
		err,
		certs.ErrRefused,
	) {
		t.Errorf("a gateway with the token of an edge: %v", err)
	}
	seenByGRPCURL(t, m.inspect, node)
	scrapedOf(
		t,
		scraped,
		`fairlead_xds_cluster_info{name="c1",namespace="default",tunnel_id="`+m.tunnel(t, "c1").Spec.ID+`"} 1`,
		`fairlead_report_cluster_tunnels{name="c1",namespace="default"} 0`,
	)
	renewed, _, err := service.Renew(t.Context(), edge)
	if err != nil || renewed.Leaf().Subject.CommonName != edge.Leaf().Subject.CommonName {
		t.Errorf("renewing: %v", err)
	}

	if err := m.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	// The code depends on which object the server observes first.
	if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.Unavailable {
		t.Errorf("with its Cluster gone the edge's stream ended with %v", err)
	}
	kubetest.Eventually(t, "receiving the end of the tunnel", func() error {
		if _, _, err := service.Renew(t.Context(), renewed); !errors.Is(err, enrolclient.ErrNotRenewable) {
			return fmt.Errorf("renewing: %w", err)
		}
		if _, _, err := subscribe(t, at, renewed, bundle); status.Code(err) != codes.FailedPrecondition {
			return fmt.Errorf("subscribing: %w", err)
		}
		return nil
	})
	stop()
	checkSpans(t, collector, token, credential.Token)
}
