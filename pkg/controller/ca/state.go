package ca

import (
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/model"
)

// errNoCA is returned until the installation is complete.
var errNoCA = errors.New("the CA does not exist yet")

// Issuer is a CA in use.
type Issuer struct {
	*certs.CA
	made  bool // created by the controller
	cross *cross
}

// cross is the cross-certificate of a CA; nil: it has none.
type cross struct {
	*certs.Cross
	by string // serial number of the CA before, which has signed it
}

// Issue is CA.Issue. It adds the cross-certificate if the CA has one, so call it on what signer returns.
func (i *Issuer) Issue(pub crypto.PublicKey, leaf certs.Leaf) (chainPEM []byte, err error) {
	chain, err := i.CA.Issue(pub, leaf)
	if err == nil && i.cross != nil {
		chain = append(chain, i.cross.CertPEM()...)
	}
	return chain, err
}

// caState records which CAs are in use and how far their rotation is. It is authoritative: all other objects about CAs
// are written after it.
type caState struct {
	phase    v1alpha1.CAPhase
	since    time.Time // start of the phase; zero in introduce until the bundle is published
	signing  *Issuer
	next     *Issuer // only in introduce
	previous *Issuer // only in move and retire; may have no key
}

// bundle returns the CAs that all components must trust, the older one first.
func (s caState) bundle() []byte {
	var all []byte
	for _, ca := range s.all() {
		all = append(all, ca.CertPEM()...)
	}
	return all
}

func (s caState) all() []*Issuer {
	var all []*Issuer
	for _, ca := range []*Issuer{s.previous, s.signing, s.next} {
		if ca != nil {
			all = append(all, ca)
		}
	}
	return all
}

// signer returns the CA that signs for a role. In the phase move the xds-servers still present a certificate of the old
// CA, because an edge that was away has only that CA in its bundle. They do not if that CA is about to end.
//
// After that, the CA has its cross-certificate for as long as the old CA is valid, for the xds-servers alone: a
// bootstrap file outlives every rotation, and its CA verifies nothing else. All other peers have their bundle from a
// certificate that was issued after the new CA was introduced.
func (s caState) signer(role model.Role, t config.Timing, now time.Time) *Issuer {
	old := s.previous
	if role == model.RoleControl && s.phase == v1alpha1.CAPhaseMove && old != nil && old.CanSign() &&
		now.Add(t.Leaf).Before(old.NotAfter()) {
		return old
	}
	cross := s.signing.cross
	if cross == nil || role == model.RoleControl && !t.NoCrossSign && now.Before(cross.NotAfter()) {
		return s.signing
	}
	return &Issuer{CA: s.signing.CA, made: s.signing.made}
}

// crossSigned returns the state in which the previous CA vouches for the CA that signs, if it can and has not done so.
// An error states why it cannot; the state is then as before.
func (s caState) crossSigned(t config.Timing, now time.Time) (caState, error) {
	if t.NoCrossSign || s.previous == nil || !s.previous.CanSign() || s.signing.cross != nil {
		return s, nil
	}
	made, err := s.previous.CrossSign(s.signing.CA, now)
	if err != nil {
		return s, err
	}
	s.signing = &Issuer{CA: s.signing.CA, made: s.signing.made, cross: &cross{made, s.previous.Serial()}}
	return s, nil
}

// expected returns the CA that belongs in the source: the newest.
func (s caState) expected() *Issuer {
	if s.next != nil {
		return s.next
	}
	return s.signing
}

// Keys of the state's Secret: <which>.crt and <which>.key for each CA, the cross-certificate of the one that signs, and
// the rest as JSON.
const (
	stateKey    = "state.json"
	crossKey    = "signing.cross.crt"
	signingKey  = "signing"
	nextKey     = "next"
	previousKey = "previous"
)

// savedState is the content of stateKey.
type savedState struct {
	Phase v1alpha1.CAPhase `json:"phase"`
	Since *time.Time       `json:"since,omitempty"`
	Made  map[string]bool  `json:"made,omitempty"`
	// CrossBy is the serial number of the CA that signed crossKey.
	CrossBy string `json:"crossBy,omitempty"`
}

// data returns the content of the state's Secret.
func (s caState) data() (map[string][]byte, error) {
	saved, data := savedState{Phase: s.phase, Made: map[string]bool{}}, map[string][]byte{}
	if !s.since.IsZero() {
		at := s.since.UTC()
		saved.Since = &at
	}
	for name, ca := range map[string]*Issuer{signingKey: s.signing, nextKey: s.next, previousKey: s.previous} {
		if ca == nil {
			continue
		}
		saved.Made[name] = ca.made
		data[name+".crt"] = ca.CertPEM()
		if !ca.CanSign() {
			continue
		}
		key, err := ca.KeyPEM()
		if err != nil {
			return nil, fmt.Errorf("writing state of the CA: %w", err)
		}
		data[name+".key"] = key
	}
	if cross := s.signing.cross; cross != nil {
		saved.CrossBy, data[crossKey] = cross.by, cross.CertPEM()
	}
	var err error
	data[stateKey], err = json.Marshal(saved)
	return data, objects.Wrap("writing state of the CA", err)
}

// parseState is the inverse of data. It validates everything that the phase needs, so callers need not.
func parseState(data map[string][]byte) (s caState, err error) {
	var saved savedState
	if err := json.Unmarshal(data[stateKey], &saved); err != nil {
		return s, fmt.Errorf("%s: %w", stateKey, err)
	}
	s.phase = saved.Phase
	if saved.Since != nil {
		s.since = *saved.Since
	}
	for name, into := range map[string]**Issuer{signingKey: &s.signing, nextKey: &s.next, previousKey: &s.previous} {
		if *into, err = parseIssuer(data[name+".crt"], data[name+".key"], saved.Made[name]); err != nil {
			return s, fmt.Errorf("%s.crt, %s.key: %w", name, name, err)
		}
	}
	var complete bool
	switch s.phase {
	case v1alpha1.CAPhaseSteady:
		complete = s.next == nil && s.previous == nil
	case v1alpha1.CAPhaseIntroduce:
		complete = s.next != nil && s.next.CanSign() && s.previous == nil
	case v1alpha1.CAPhaseMove, v1alpha1.CAPhaseRetire:
		complete = s.previous != nil && s.next == nil
	}
	if s.signing == nil || !s.signing.CanSign() || !complete {
		return s, fmt.Errorf("%s: phase %q lacks CAs that it requires", stateKey, s.phase)
	}
	if data := data[crossKey]; len(data) > 0 {
		parsed, err := certs.ParseCross(data, s.signing.CA)
		if err != nil {
			return s, fmt.Errorf("%s: %w", crossKey, err)
		}
		s.signing.cross = &cross{parsed, saved.CrossBy}
	}
	return s, nil
}

// parseIssuer reads a CA. It returns nil if the data has none, and a CA that cannot sign if the data has no key.
func parseIssuer(cert, key []byte, made bool) (*Issuer, error) {
	switch {
	case len(cert) == 0:
		return nil, nil
	case len(key) == 0:
		cas, err := certs.ParseCAs(cert)
		if err != nil {
			return nil, err
		}
		return &Issuer{CA: cas[0], made: made}, nil
	}
	ca, err := certs.ParseCA(cert, key)
	if err != nil {
		return nil, err
	}
	return &Issuer{CA: ca, made: made}, nil
}

// parseStateSecret adds to the error of an unusable Secret how to repair it.
func parseStateSecret(secret *corev1.Secret) (caState, error) {
	s, err := parseState(secret.Data)
	if err != nil {
		return s, fmt.Errorf("reading Secret %s/%s: %w: restore it from a backup, or delete it: then the CA in Secret %s "+
			"signs at once, and agents that do not trust it yet must enrol again",
			secret.Namespace, secret.Name, err, v1alpha1.CASecretName)
	}
	return s, nil
}
