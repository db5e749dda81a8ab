package identity

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// Tokens of TestDoors end so soon and after so few uses that it sees all of their life.
const (
	tokenLifetime = 80 * time.Second
	tokenUses     = 6
)

// doors is an installation whose CA somebody has brought, and what is tried at its doors.
type doors struct {
	*world.World
	whole  *testing.T // the test that all parts belong to
	ca     *certs.CA
	tokens *tokenWatch
}

// TestDoors proves who is let in, by what, and who no more.
func TestDoors(t *testing.T) {
	t.Parallel()
	if !testing.Short() {
		go func() { _, _ = builtClocks() }() // beside all that comes before it is needed
	}
	ca, err := certs.NewCA("Example Corp Issuing CA", time.Now().Add(-365*day), 3*365*day) // older than the oldest leaf here
	must(t, err)
	d := &doors{whole: t, ca: ca}
	d.World = newWorld(t, lab.Options{
		Gateways: 2, Lean: true, Prepare: d.bringCA,
		ControllerFlags: []string{"--token-lifetime=" + tokenLifetime.String(), "--token-uses=6"},
	})
	for _, part := range []part{
		{"certificates", false, d.certificates},
		{"enrolment", false, d.enrolment},
		{"own configuration only", false, d.isolation},
		{"revocation", false, d.revocation},
		{"end of a tunnel", false, d.ends},
		{"edges", true, d.edges},
		{"clocks", true, d.clocks},
		{"garbage", false, d.garbage},
		{"tokens in the end", true, d.tokensInTheEnd},
		{"another CA", false, d.broughtAnew},
	} {
		if !part.long || !testing.Short() {
			t.Run(part.name, part.run)
		}
	}
	t.Run("logs", func(t *testing.T) { d.Logs(t) })
}

// part is a part of TestDoors.
type part struct {
	name string
	long bool // too long for a quick look
	run  func(t *testing.T)
}

// edges proves what has edges of its own and touches nobody else's, two parts at a time: most of it is waiting.
func (d *doors) edges(t *testing.T) {
	t.Run("far", func(t *testing.T) {
		t.Parallel()
		d.reaching(t)
	})
	t.Run("near", func(t *testing.T) {
		t.Parallel()
		t.Run("forms", d.forms)
		t.Run("several clusters", d.memberships)
		t.Run("slept too long", d.slept)
		t.Run("disk", d.disk)
	})
}

// bringCA makes the Secret of the CA as an issuer like cert-manager would.
func (d *doors) bringCA(ctx context.Context, l *lab.Lab) error {
	key, err := d.ca.KeyPEM()
	if err != nil {
		return err
	}
	return l.Management.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.InstallationNamespace, Name: v1alpha1.CASecretName},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: d.ca.CertPEM(), corev1.TLSPrivateKeyKey: key},
	})
}
