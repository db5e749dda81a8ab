package hosted

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/hosted/extension"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
)

// headerTime bounds the header of a request to a server here.
const headerTime = 5 * time.Second

// ServeTLS serves HTTPS on a machine, with a certificate of the Cluster's CA for a name.
func (c *ControlPlane) ServeTLS(
	ctx context.Context, at *netns.Site, name string, port int, handler http.Handler,
) error {
	pair, err := c.APIServer.CA.Issue(pki.LeafSpec{
		CommonName: "server", Names: []string{name}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return fmt.Errorf("reading the certificate of %s: %w", name, err)
	}
	listener, err := at.Listen(ctx, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)).String())
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTime,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	c.lab.OnClose(func(context.Context) { _ = server.Close() })
	return nil
}

// serveService serves HTTPS on a machine for a new Service of the Cluster in the namespace default.
func (c *ControlPlane) serveService(
	ctx context.Context, at *netns.Site, name string, port int, handler http.Handler,
) error {
	if err := c.ServeTLS(ctx, at, name+".default.svc", port, handler); err != nil {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{at.Address.String()}}},
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("https"), Port: ptr.To(int32(port)), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	if err := c.APIServer.Client.Create(ctx, service); err != nil {
		return fmt.Errorf("creating the Service %s: %w", name, err)
	}
	if err := c.APIServer.Client.Create(ctx, slice); err != nil {
		return fmt.Errorf("creating the EndpointSlice %s: %w", name, err)
	}
	return nil
}

// ServeWebhook serves a webhook on a machine that denies all new ConfigMaps of the Cluster, with a reason.
func (c *ControlPlane) ServeWebhook(ctx context.Context, at *netns.Site, reason string) error {
	if err := c.serveService(ctx, at, "hook", HookPort, extension.Deny(reason)); err != nil {
		return err
	}
	return c.Apply(ctx, c.WebhookManifest(""))
}

const (
	probeKey, probeValue = "probe", "webhook"
	// ProbeLabel is the label of the object that Denied creates.
	ProbeLabel = probeKey + ": " + probeValue
)

// WebhookManifest configures the webhook of the Service hook, in the namespace default, for new ConfigMaps with labels
// such as "a: b, c: d"; an empty text selects all.
func (c *ControlPlane) WebhookManifest(labels string) string {
	return `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook}
webhooks:
- name: hook.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 5
  objectSelector: {matchLabels: {` + labels + `}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  clientConfig: {caBundle: ` + c.caBundle() + `, service: {namespace: default, name: hook, path: /}}
`
}

// Denied returns a condition that is nil once the webhook denies a new ConfigMap for a reason.
func (c *ControlPlane) Denied(reason string) func(context.Context) error {
	return func(ctx context.Context) error {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "probe", Labels: map[string]string{probeKey: probeValue},
		}}
		err := c.APIServer.Client.Create(ctx, probe, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), reason) {
			return fmt.Errorf("want a denial by the webhook: %w", err)
		}
		return nil
	}
}

// ServeNodeMetrics serves the aggregated API that `kubectl top nodes` reads, with the same usage of each Node, on a
// machine: see MetricsManifest.
func (c *ControlPlane) ServeNodeMetrics(ctx context.Context, at *netns.Site, nodes ...string) error {
	var usages []extension.Usage
	for _, node := range nodes {
		usages = append(usages, extension.Usage{Node: node, CPU: "250m", Memory: "64Mi"})
	}
	api := extension.NodeMetrics(func() []extension.Usage { return usages })
	if err := c.serveService(ctx, at, "metrics", APIPort, api); err != nil {
		return err
	}
	return c.Apply(ctx, c.MetricsManifest())
}

// MetricsManifest registers the aggregated API of the Service metrics, in the namespace default.
func (c *ControlPlane) MetricsManifest() string {
	return `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: ` + c.caBundle() + `
  service: {namespace: default, name: metrics}
`
}
