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

// Tokens of TestOnlyValidIdentitiesGetAccess expire so soon, and after so few uses, that the test covers their whole
// life.
const (
	tokenLifetime = 80 * time.Second
	tokenUses     = 6
)

// doors is an installation with a user-provided CA, against which the test tries many kinds of access.
type doors struct {
	*world.World
	whole  *testing.T // the test that contains all parts
	ca     *certs.CA
	tokens *tokenWatch
}

// TestOnlyValidIdentitiesGetAccess proves which clients get access with which credentials, and which lose it.
func TestOnlyValidIdentitiesGetAccess(t *testing.T) {
	t.Parallel()
	if !testing.Short() {
		go func() { _, _ = builtClocks() }() // built in parallel until it is needed
	}
	// older than the oldest leaf of this test
	ca, err := certs.NewCA("Example Corp Issuing CA", time.Now().Add(-365*day), 3*365*day)
	must(t, err)
	d := &doors{whole: t, ca: ca}
	d.World = newWorld(t, lab.Options{
		Gateways: 2, Lean: true, WithoutWorkload: testing.Short(), Prepare: d.createCA,
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

// part is a part of TestOnlyValidIdentitiesGetAccess.
type part struct {
	name string
	long bool // too slow for -short
	run  func(t *testing.T)
}

// edges runs the parts that use only their own edges, two at a time: most of their time is waiting.
func (d *doors) edges(t *testing.T) {
	t.Run("far", func(t *testing.T) {
		t.Parallel()
		d.reaching(t)
	})
	t.Run("near", func(t *testing.T) {
		t.Parallel()
		t.Run("forms", d.forms)
		t.Run("several clusters", d.memberships)
		t.Run("off for months", d.offForMonths)
		t.Run("pods", d.pods)
		t.Run("disk", d.disk)
	})
}

// createCA creates the Secret of the CA like an issuer such as cert-manager.
func (d *doors) createCA(ctx context.Context, l *lab.Lab) error {
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
