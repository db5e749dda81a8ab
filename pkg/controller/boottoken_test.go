package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
)

func TestChooseReportToken(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := testConfig()
	var status v1alpha1.TunnelStatus
	first, err := config.chooseReportToken(&status, nil, at)
	if err != nil || !strings.HasPrefix(first, "flr1.") || len(status.BootReportTokens) != 1 || status.BootReportTokens[0].SHA256 != enrol.HashToken(first) {
		t.Fatalf("%q, %+v, %v", first, status, err)
	}
	choose := func(token string, at time.Time) string {
		t.Helper()
		secret := tokenSecret(token)
		got, err := config.chooseReportToken(&status, secret, at)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := choose(first, at.Add(config.TokenLifetime/2-time.Second)); got != first {
		t.Error("it is replaced while it is good")
	}
	second := choose(first, at.Add(config.TokenLifetime/2))
	if second == first || len(status.BootReportTokens) != 2 {
		t.Errorf("records %+v", status.BootReportTokens)
	}
	if choose(second, at.Add(config.TokenLifetime)); len(status.BootReportTokens) != 2 {
		t.Errorf("the first has ended, and the second is half through: %+v", status.BootReportTokens)
	}
	for range 3 * maxTokens {
		choose("planted", at.Add(config.TokenLifetime))
	}
	if len(status.BootReportTokens) != maxTokens {
		t.Errorf("%d records", len(status.BootReportTokens))
	}
	if _, err := config.chooseReportToken(&status, nil, at); err != nil || len(status.BootReportTokens) != 1 {
		t.Errorf("who deletes the Secret ends what was in it: %+v, %v", status.BootReportTokens, err)
	}
}

// TestTheSecretForBootReports has the real controller.
func TestTheSecretForBootReports(t *testing.T) {
	w := newBootWorld(t, nil)
	key := client.ObjectKey{Namespace: w.cluster.Namespace, Name: "c1" + v1alpha1.BootReportSecretSuffix}
	token := func(not string) (found string) {
		t.Helper()
		eventually(t, func() error {
			secret := tokenSecret("")
			if err := w.m.Get(t.Context(), key, secret); err != nil {
				return err
			}
			found = string(secret.Data[v1alpha1.BootstrapTokenKey])
			if found == not || !strings.Contains(string(secret.Data[v1alpha1.BootReportFileKey]), found) || len(secret.Data) != 2 {
				return fmt.Errorf("the Secret has %d keys", len(secret.Data))
			}
			tunnel := read(t, w.m, tunnelNamed(w.cluster))
			if indexToken(tunnel.Status.BootReportTokens, enrol.HashToken(found)) < 0 || indexToken(tunnel.Status.Tokens, enrol.HashToken(found)) >= 0 {
				return fmt.Errorf("status %+v", tunnel.Status)
			}
			return nil
		})
		return found
	}
	first := token("")
	secret := tokenSecret("")
	secret.Namespace, secret.Name = key.Namespace, key.Name
	if err := w.m.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	token(first)
}

func tokenSecret(token string) *corev1.Secret {
	return &corev1.Secret{Data: map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(token)}}
}
