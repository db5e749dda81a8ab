package kubeconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestValidate(t *testing.T) {
	byProxy := func(address string) v1alpha1.KubeconfigSpec {
		return v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeHTTPProxy, Proxy: &v1alpha1.ProxySpec{Address: address}}
	}
	byServer := func(server, name string) v1alpha1.KubeconfigSpec {
		return v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeAddress, Server: server, TLSServerName: name}
	}
	const server, address = "spec.kubeconfig.server", "spec.kubeconfig.proxy.address"
	tests := map[string]struct {
		in     v1alpha1.KubeconfigSpec
		field  string // with the error; empty: none
		secret string // must not be in the error
	}{
		"a proxy":                     {in: byProxy("proxy.example.org:3128")},
		"a proxy of one label":        {in: byProxy("proxy:3128")},
		"a proxy in upper case":       {in: byProxy("Proxy.Example.Org:3128")},
		"a proxy by its IPv6 address": {in: byProxy("[2001:db8::1]:3128")},
		"a proxy without port":        {in: byProxy("proxy.example.org"), field: address},
		"a proxy with port 0":         {in: byProxy("proxy.example.org:0"), field: address},
		"a proxy as a URL":            {in: byProxy("http://proxy.example.org:3128"), field: address},
		"a proxy with credentials": {
			in:     byProxy("capi:hunter2@proxy.example.org:3128"),
			field:  address,
			secret: "hunter2",
		},
		"a URL of a proxy with a path": {in: byProxy("proxy.example.org:3128/x"), field: address},
		"no proxy":                     {in: v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSOCKS5}, field: address},
		"a server":                     {in: byServer("https://lb.example.org:6443", "")},
		"a server without port":        {in: byServer("https://lb.example.org", "kubernetes")},
		"a server by its IPv6 address": {in: byServer("https://[2001:db8::1]:6443", "192.0.2.1")},
		"a server without TLS":         {in: byServer("http://lb.example.org:6443", ""), field: server},
		"a server with credentials": {
			in:     byServer("https://capi:hunter2@lb.example.org:6443", ""),
			field:  server,
			secret: "hunter2",
		},
		"a server with a path":          {in: byServer("https://lb.example.org:6443/k8s", ""), field: server},
		"a server with a port too high": {in: byServer("https://lb.example.org:70000", ""), field: server},
		"no server":                     {in: byServer("", ""), field: server},
		"a name that TLS can't carry": {
			in:    byServer("https://lb.example.org", "not a name"),
			field: "spec.kubeconfig.tlsServerName",
		},
		"modes through the gateways": {in: v1alpha1.KubeconfigSpec{}},
		"the same of a name that is none": {
			in:    v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect, TLSServerName: "-"},
			field: "spec.kubeconfig.tlsServerName",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, problem := Validate(tc.in)
			if problem == nil {
				if tc.field != "" {
					t.Errorf("it was taken, and %s is at fault", tc.field)
				}
				return
			}
			if problem.Field != tc.field || problem.Cure == "" || problem.Problem == "" ||
				(tc.secret != "" && strings.Contains(problem.Error(), tc.secret)) {
				t.Errorf("got %v, want %s at fault, and no secrets", problem, tc.field)
			}
		})
	}
}

func TestReadCredentials(t *testing.T) {
	secret := func(kind corev1.SecretType, user, password string) *corev1.Secret {
		return &corev1.Secret{Type: kind, Data: map[string][]byte{"username": []byte(user), "password": []byte(password)}}
	}
	basic := corev1.SecretTypeBasicAuth
	tests := map[string]struct {
		in  *corev1.Secret
		bad bool
	}{
		"good":                  {in: secret(basic, "capi", "p@ss:/%")},
		"missing":               {bad: true},
		"of another type":       {in: secret(corev1.SecretTypeOpaque, "capi", "hunter2"), bad: true},
		"no username":           {in: secret(basic, "", "hunter2"), bad: true},
		"no password":           {in: secret(basic, "hunter2", ""), bad: true},
		"a colon in a username": {in: secret(basic, "hunter2:x", "hunter2"), bad: true},
		"the end of a line":     {in: secret(basic, "capi", "hunter2\n"), bad: true},
		"too long":              {in: secret(basic, "capi", strings.Repeat("hunter2", 40)), bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, problem := ReadCredentials("proxy", tc.in)
			if (problem != nil) != tc.bad || (got == nil) != tc.bad {
				t.Fatalf("got %v, %v", got, problem)
			}
			if problem != nil && strings.Contains(problem.Error(), "hunter2") {
				t.Errorf("%v tells what is in the Secret", problem)
			}
		})
	}
}
