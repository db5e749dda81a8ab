package tunnel

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/enrol"
)

func TestChooseReportToken(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := controllertest.Config()
	var status v1alpha1.TunnelStatus
	first, err := chooseReportToken(config, &status, nil, "", at)
	if err != nil || !strings.HasPrefix(first, "flr1.") || len(status.BootReportTokens) != 1 ||
		status.BootReportTokens[0].SHA256 != enrol.HashToken(first) {
		t.Fatalf("%q, %+v, %v", first, status, err)
	}
	choose := func(token string, at time.Time) string {
		t.Helper()
		secret := tokenSecret(token)
		got, err := chooseReportToken(config, &status, secret, "", at)
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
	if _, err := chooseReportToken(config, &status, nil, "", at); err != nil || len(status.BootReportTokens) != 1 {
		t.Errorf("who deletes the Secret ends what was in it: %+v, %v", status.BootReportTokens, err)
	}
}

func tokenSecret(token string) *corev1.Secret {
	return &corev1.Secret{Data: map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(token)}}
}
