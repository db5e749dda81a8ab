package controller

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/kubetest"
)

// TestInvalidObjectsAreRejectedWhenApplied applies each mistake, as YAML, to a real apiserver. The error must name the
// field and the cure.
func TestInvalidObjectsAreRejectedWhenApplied(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	for spec, want := range map[string][]string{
		`id: short`: {"spec.id", "leave it out, and the controller chooses it"},
		`apiServer: {address: "https://10.0.0.1"}`: {
			"spec.apiServer.address", "without https://",
		},
		`apiServer: {address: "10.0.0.1:6443"}`: {
			"spec.apiServer.address", "the field port",
		},
		`apiServer: {address: "10.0.0.0/24"}`: {
			"spec.apiServer.address", "IP address or a DNS name",
		},
		`apiServer: {address: "a b"}`: {
			"spec.apiServer.address", "leave it out for the endpoint of the Cluster",
		},
		`apiServer: {port: 0}`: {
			"spec.apiServer.port", "between 1 and 65535", "leave it out",
		},
		`apiServer: {port: 70000}`: {
			"spec.apiServer.port", "between 1 and 65535",
		},
		`apiServer: {others: [{address: ""}]}`: {
			"spec.apiServer.others[0].address", "IP address or a DNS name",
		},
		`apiServer: {others: [{address: "a/b"}]}`: {
			"spec.apiServer.others[0].address", "without https://",
		},
		`apiServer: {others: [{address: a, port: 65536}]}`: {
			"spec.apiServer.others[0].port", "leave it out for that of the first",
		},
		`extraNames: [Upper.example.com]`: {
			"spec.extraNames[0]", "lower-case DNS name",
		},
		`extraNames: [a.example.com, 192.0.2.7]`: {
			"spec.extraNames[1]", "no IP address",
		},
		`extraNames: ["*.example.com"]`: {
			"spec.extraNames[0]", "no wildcard",
		},
		`extraNames: ["api.example.com:6443"]`: {
			"spec.extraNames[0]", "no port",
		},
		`extraNames: [onelabel]`: {
			"spec.extraNames[0]", "with a dot",
		},
		`extraNames: [a.example.com, a.example.com]`: {
			"spec.extraNames", "remove one of them",
		},
		"extraNames: [" + strings.Repeat("a.", 200) + "example.com]": {
			"spec.extraNames[0]", "lower-case DNS name",
		},
		`revokedEdges: ["CN=edge-a"]`: {
			"spec.revokedEdges[0]", "fairlead edge list", "without CN=",
		},
		"revokedEdges: [" + strings.Repeat("a", 33) + "]": {
			"spec.revokedEdges[0]", "fairlead edge list",
		},
		`limits: {connections: 0}`: {
			"spec.limits.connections", "leave it out for 512",
		},
		`limits: {pendingConnections: 20000}`: {
			"spec.limits.pendingConnections", "leave it out for 256",
		},
		`limits: {bandwidth: 1Ki}`: {
			"spec.limits.bandwidth", "between 64Ki and 1Ti",
		},
		`kubeconfig: {mode: vpn}`: {
			"spec.kubeconfig.mode", `"auto", "sni", "connect"`,
		},
		`kubeconfig: {mode: address}`: {
			"spec.kubeconfig", "server goes with mode: address", "give both",
		},
		`kubeconfig: {server: "https://a:1"}`: {
			"spec.kubeconfig", "leave both out",
		},
		`kubeconfig: {mode: socks5}`: {
			"spec.kubeconfig", "give mode and proxy",
		},
		`kubeconfig: {proxy: {address: "proxy:3128"}}`: {
			"spec.kubeconfig", "give mode and proxy",
		},
		`kubeconfig: {tlsServerName: "api.example.com:6443"}`: {
			"spec.kubeconfig.tlsServerName", "without a port",
		},
		`kubeconfig: {mode: address, server: "http://lb:6443"}`: {
			"spec.kubeconfig.server", "must be https://host:port",
		},
		`kubeconfig: {mode: address, server: "https://lb:6443/path"}`: {
			"spec.kubeconfig.server", "no path",
		},
		`kubeconfig: {mode: address, server: "https://me:pw@lb:6443"}`: {
			"spec.kubeconfig.server", "no password",
		},
		`kubeconfig: {mode: http-proxy, proxy: {address: "http://proxy:3128"}}`: {
			"spec.kubeconfig.proxy.address", "must be host:port: the mode sets the kind",
		},
		`kubeconfig: {mode: http-proxy, proxy: {address: "me:pw@proxy:3128"}}`: {
			"spec.kubeconfig.proxy.address", "credentialsSecret",
		},
		`kubeconfig: {mode: http-proxy, proxy: {address: proxy}}`: {
			"spec.kubeconfig.proxy.address", "host:port",
		},
		`kubeconfig: {mode: http-proxy, proxy: {address: "p:1", credentialsSecret: "prod/creds"}}`: {
			"spec.kubeconfig.proxy.credentialsSecret", "without the namespace",
		},
		`kubeconfig: {copies: [{name: a}]}`: {"spec.kubeconfig.copies[0]", "needs either clientCertificate or exec"},
		`kubeconfig: {copies: [{name: a, exec: {command: x}, clientCertificate: {commonName: x}}]}`: {
			"spec.kubeconfig.copies[0]", "and not both",
		},
		`kubeconfig: {copies: [{name: A_b, exec: {command: x}}]}`: {
			"spec.kubeconfig.copies[0].name", "must be the name of a Secret",
		},
		`kubeconfig: {copies: [{name: a, namespace: a.b, exec: {command: x}}]}`: {
			"spec.kubeconfig.copies[0].namespace", "name of a namespace",
		},
		`kubeconfig: {copies: [{name: a, exec: {command: x}}, {name: a, exec: {command: z}}]}`: {
			"spec.kubeconfig.copies", "give one of them another name",
		},
		`kubeconfig: {copies: [{name: c1-kubeconfig, exec: {command: x}}]}`: {
			"spec.kubeconfig.copies", "give the copy another name",
		},
		`kubeconfig: {copies: [{name: a, exec: {command: x}}, {name: c1-boot-report, exec: {command: x}}]}`: {
			"spec.kubeconfig.copies", "give the copy another name",
		},
		`kubeconfig: {copies: [{name: a, mode: address, exec: {command: x}}]}`: {
			"spec.kubeconfig.copies[0].mode", "must be sni or connect", "leave it out",
		},
		`kubeconfig: {copies: [{name: a, clientCertificate: {commonName: ""}}]}`: {
			"spec.kubeconfig.copies[0].clientCertificate.commonName", "1 to 64 characters",
		},
		`kubeconfig: {copies: [{name: a, clientCertificate: {commonName: x, expirationSeconds: 60}}]}`: {
			"clientCertificate.expirationSeconds", "leave it out for 30 days",
		},
		`kubeconfig: {copies: [{name: a, exec: {command: ""}}]}`: {"spec.kubeconfig.copies[0].exec.command"},
	} {
		err := applied(t, m, ns, spec)
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", spec, err)
			continue
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q is not in %q", spec, text, err)
			}
		}
	}
}

// TestValidObjectsAreAccepted guards against rules that are too strict and would reject valid objects.
func TestValidObjectsAreAccepted(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	copies := "kubeconfig: {copies: ["
	for i := range 32 {
		copies += fmt.Sprintf(
			"{name: %s-%d, namespace: other, clientCertificate: {commonName: x}},", strings.Repeat("a", 240), i,
		)
	}
	names := "extraNames: ["
	for i := range 16 {
		names += fmt.Sprintf("%s%d.example.com,", strings.Repeat("a.", 110), i)
	}
	revoked := "revokedEdges: ["
	for i := range 1024 {
		revoked += fmt.Sprintf("edge-%d,", i)
	}
	for _, spec := range []string{
		"{}", copies + "]}", names + "]", revoked + "]",
		`apiServer: {address: "2001:db8::1", port: 6443, others: [{address: "10.0.0.2"}, {address: "API.example.com."}, {address: "_srv.local", port: 443}]}`,
		`apiServer: {address: ""}`,
		`kubeconfig: {mode: connect, tlsServerName: kubernetes}`,
		`kubeconfig: {mode: address, server: "https://[2001:db8::1]:6443", tlsServerName: 10.0.0.1}`,
		`kubeconfig: {mode: address, server: "https://lb.example.org"}`,
		`kubeconfig: {mode: socks5, proxy: {address: "[::1]:1080", credentialsSecret: my.creds}}`,
		`kubeconfig: {copies: [{name: c1-kubeconfig, namespace: other, exec: {command: x}}, {name: a, exec: {command: z}}]}`,
		`kubeconfig: {copies: [{name: c11-kubeconfig, exec: {command: x}}, {name: kubeconfig, exec: {command: x}}]}`,
		`kubeconfig: {copies: [{name: a.c1-kubeconfig, exec: {command: x}}, {name: c1-kubeconfig-2, exec: {command: x}}]}`,
	} {
		if err := applied(t, m, ns, spec); err != nil {
			t.Errorf("%.80s: %v", spec, err)
		}
	}
}

// applied returns the apiserver's answer to a Tunnel with a spec.
func applied(t *testing.T, m *management, namespace, spec string) error {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := "apiVersion: fairlead.dev/v1alpha1\nkind: Tunnel\nmetadata: {name: c1, namespace: " + namespace +
		"}\nspec:\n  " + spec + "\n"
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return m.Create(t.Context(), o, client.DryRunAll)
}
