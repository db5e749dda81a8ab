package copies

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestACopysCertificateIsRotatedInTime simulates ten days of a copy whose certificate lives for ten hours.
func TestACopysCertificateIsRotatedInTime(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	ca, err := certs.NewCA("kubernetes", now, 365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	spec := &v1alpha1.ClientCertificateAudience{CommonName: "alice", Groups: []string{"b", "a"}, ExpirationSeconds: 36000}
	r := &Reconciler{Deps: reconciler.Deps{Now: func() time.Time { return now }}}
	var have *corev1.Secret
	issued, begun := 0, now
	for now.Before(begun.Add(10 * 24 * time.Hour)) {
		var result copyResult
		user, err := r.certified(ca, spec, have, &result)
		if err != nil {
			t.Fatal(err)
		}
		data, err := copyOf("c1", &clientcmdapi.Cluster{Server: "https://x"}, user)
		if err != nil {
			t.Fatal(err)
		}
		if have == nil || string(have.Data[kubeconfig.Key]) != string(data) {
			issued++
		}
		have = &corev1.Secret{Data: map[string][]byte{kubeconfig.Key: data}}
		_, cert := certificateIn(have)
		if cert == nil || !now.Before(cert.NotAfter.Add(-2*time.Hour)) || now.Before(cert.NotBefore) {
			t.Fatalf("at %s the copy has a certificate until %v", now, cert)
		}
		if result.notAfter != cert.NotAfter || !result.renewAt.After(now) ||
			result.renewAt.After(cert.NotAfter.Add(-2*time.Hour)) {
			t.Fatalf("at %s the next look is at %s", now, result.renewAt)
		}
		now = now.Add(40 * time.Minute)
	}
	// One in 6 h 40 m to 7 h 10 m, observed up to 40 minutes later.
	if minutes := 10 * 24 * 60 / issued; minutes < 380 || minutes > 480 {
		t.Errorf("a certificate lasts %d minutes, want 380 to 480", minutes)
	}
}

func TestACopyEndsWithItsCA(t *testing.T) {
	now := time.Now()
	ca, err := certs.NewCA("kubernetes", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	spec := &v1alpha1.ClientCertificateAudience{CommonName: "alice"}
	r := &Reconciler{Deps: reconciler.Deps{Now: func() time.Time { return now }}}
	var first, second copyResult
	user, err := r.certified(ca, spec, nil, &first)
	if err != nil {
		t.Fatal(err)
	}
	if !first.notAfter.Equal(ca.NotAfter()) {
		t.Errorf("it ends at %s, its CA at %s", first.notAfter, ca.NotAfter())
	}
	data, err := copyOf("c1", &clientcmdapi.Cluster{}, user)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.certified(ca, spec, &corev1.Secret{Data: map[string][]byte{kubeconfig.Key: data}}, &second)
	if err != nil || string(again.ClientCertificateData) != string(user.ClientCertificateData) {
		t.Errorf("it is issued anew at each look: %v", err)
	}
}
