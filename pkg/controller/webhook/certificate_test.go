package webhook

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead/fairlead/pkg/certs"
)

// TestAPIServersAlwaysTrustTheWebhook simulates three years while replicas and apiservers are always one step
// behind.
func TestAPIServersAlwaysTrustTheWebhook(t *testing.T) {
	times := servingTimes{life: 90 * 24 * time.Hour, settle: time.Minute}
	begun := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	hosts := []string{"fairlead-webhook.fairlead-system.svc"}
	var state servingCerts
	var err error
	if state, err = state.step(hosts, false, times, begun); err != nil {
		t.Fatal(err)
	}
	published, served, leaves := state.bundle, state.current, 1
	for now := begun; now.Before(begun.Add(3 * 365 * 24 * time.Hour)); {
		before := state
		if state, err = state.step(hosts, string(published) == string(state.bundle), times, now); err != nil {
			t.Fatal(err)
		}
		data, err := state.data()
		if err != nil {
			t.Fatal(err)
		}
		if state, err = parseServing(data); err != nil {
			t.Fatal(err)
		}
		// A replica still serves the previous certificate; apiservers have the previous bundle or already this one.
		for _, leaf := range []certs.Identity{served, state.current} {
			for name, bundle := range map[string][]byte{"old": published, "new": state.bundle} {
				roots, err := certs.Bundle(bundle).Roots()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := leaf.Leaf().Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: hosts[0]}); err != nil {
					t.Fatalf("at %s apiservers with the %s bundle: %v", now, name, err)
				}
			}
		}
		if state.current.Serial() != before.current.Serial() {
			leaves++
		}
		if left := state.current.NotAfter().Sub(now); left < times.life/4 {
			t.Fatalf("at %s the leaf has %s left", now, left)
		}
		if n := len(parsed(state.bundle)); n > 3 {
			t.Fatalf("%d CAs at %s", n, now)
		}
		published, served = state.bundle, state.current
		now = now.Add(36 * time.Hour)
		if due := state.nextStep(times); state.next.Leaf() != nil && due.Before(now) {
			now = due
		}
	}
	if leaves < 15 || leaves > 20 { // 60 days each
		t.Errorf("%d leaves in three years", leaves)
	}
}

func TestTheWebhooksLeafFollowsItsHosts(t *testing.T) {
	times, now := servingTimes{life: time.Hour, settle: time.Minute}, time.Now()
	state, err := servingCerts{}.step([]string{"a.svc"}, false, times, now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // the configuration is changed again and again
		hosts := []string{"127.0.0.1", "b.svc"}
		if i%2 == 0 {
			hosts = []string{"c.svc"}
		}
		if state, err = state.step(hosts, true, times, now); err != nil {
			t.Fatal(err)
		}
		if n := len(parsed(state.bundle)); n != 2 || !covers(state.next, hosts) || !covers(state.current, []string{"a.svc"}) {
			t.Fatalf("change %d: %d CAs", i, n)
		}
	}
	if state, err = state.step([]string{"127.0.0.1", "b.svc"}, false, times, now.Add(2*time.Minute)); err != nil ||
		state.next.Leaf() == nil {
		t.Errorf("it was served before apiservers know its CA: %v", err)
	}
	if state, err = state.step([]string{"127.0.0.1", "b.svc"}, true, times, now.Add(2*time.Minute)); err != nil ||
		state.next.Leaf() != nil || !covers(state.current, []string{"127.0.0.1"}) {
		t.Errorf("it is not served: %v", err)
	}
}

func TestAnUnusableWebhookSecretIsReplaced(t *testing.T) {
	times, now := servingTimes{life: time.Hour, settle: time.Minute}, time.Now()
	good, err := servingCerts{}.step([]string{"a.svc"}, false, times, now)
	if err != nil {
		t.Fatal(err)
	}
	data, err := good.data()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"tls.crt", "tls.key", "ca.crt"} {
		broken := map[string][]byte{"tls.crt": data["tls.crt"], "tls.key": data["tls.key"], "ca.crt": data["ca.crt"]}
		broken[key] = []byte("x")
		if _, err := parseServing(broken); err == nil || strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: %v", key, err)
		}
	}
	other, err := certs.NewCA("other", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	data["ca.crt"] = other.CertPEM()
	state, err := parseServing(data)
	if err != nil {
		t.Fatal(err)
	}
	if state, err = state.step([]string{"a.svc"}, true, times, now); err != nil || !state.trusts(state.current) ||
		state.current.Serial() == good.current.Serial() {
		t.Errorf("a leaf that nobody trusts stays: %v", err)
	}
}

func TestWebhookHosts(t *testing.T) {
	service := &admissionv1.ServiceReference{Namespace: "ns", Name: "svc"}
	tests := map[string]struct {
		in      admissionv1.WebhookClientConfig
		want    string
		wantErr string
	}{
		"a Service": {admissionv1.WebhookClientConfig{Service: service}, "svc.ns.svc", ""},
		"a URL":     {admissionv1.WebhookClientConfig{URL: ptr.To("https://[::1]:9443/x")}, "::1", ""},
		"a URL without host": {
			admissionv1.WebhookClientConfig{URL: ptr.To("https:///x")}, "", "webhooks[0].clientConfig.url",
		},
		"nothing": {admissionv1.WebhookClientConfig{}, "", "webhooks"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := webhookHosts(
				&admissionv1.MutatingWebhookConfiguration{Webhooks: []admissionv1.MutatingWebhook{{ClientConfig: tc.in}}},
			)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("%v, want %s", err, tc.wantErr)
				}
				return
			}
			if err != nil || len(got) != 1 || got[0] != tc.want {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
