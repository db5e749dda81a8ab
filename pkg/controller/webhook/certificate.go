package webhook

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
)

const (
	// webhookLifetime is the lifetime of a serving certificate and of its own CA.
	webhookLifetime = 90 * 24 * time.Hour
	// webhookSettle is how long a new CA is published before its leaf is served: apiservers watch the configuration and
	// apply a change within seconds.
	webhookSettle = time.Minute

	// A leaf that apiservers may not trust yet is stored under these keys.
	nextCertKey, nextKeyKey = "next.crt", "next.key"
	webhookCAKey            = "ca.crt"
)

// servingCerts are the certificates of the webhook: the current leaf, the next one, and the CAs that apiservers must
// trust. Each leaf has its own CA, whose key is never stored.
type servingCerts struct {
	current, next certs.Identity // zero: none
	bundle        []byte
}

// parseServing parses what data has written. If the leaf is unusable, it returns the zero value.
func parseServing(data map[string][]byte) (s servingCerts, err error) {
	if s.current, err = certs.ParseIdentity(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]); err != nil {
		return servingCerts{}, err
	}
	if _, err := certs.ParseCAs(data[webhookCAKey]); err != nil {
		return servingCerts{}, err
	}
	s.bundle = data[webhookCAKey]
	if len(data[nextCertKey]) > 0 {
		if s.next, err = certs.ParseIdentity(data[nextCertKey], data[nextKeyKey]); err != nil {
			s.next = certs.Identity{} // another one is created
		}
	}
	return s, nil
}

// data returns the content of the Secret.
func (s servingCerts) data() (map[string][]byte, error) {
	key, err := s.current.KeyPEM()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{
		corev1.TLSCertKey: s.current.ChainPEM(), corev1.TLSPrivateKeyKey: key, webhookCAKey: s.bundle,
	}
	if s.next.Leaf() != nil {
		if key, err = s.next.KeyPEM(); err != nil {
			return nil, err
		}
		data[nextCertKey], data[nextKeyKey] = s.next.ChainPEM(), key
	}
	return data, nil
}

// servingTimes are the times of a certificate rotation.
type servingTimes struct{ life, settle time.Duration }

// step takes the next step of a rotation, if one is due: a new leaf waits until its CA is published for long enough,
// and the previous CA stays until it ends. published reports whether the whole bundle is in the configuration that
// apiservers read.
func (s servingCerts) step(hosts []string, published bool, times servingTimes, now time.Time) (servingCerts, error) {
	switch {
	case s.current.Leaf() == nil || !now.Before(s.current.NotAfter()) || !s.trusts(s.current):
		// Apiservers trust no existing certificate, so it can be replaced at once.
		return s.make(
			hosts, times, now, func(out *servingCerts, made certs.Identity) { out.current, out.next = made, certs.Identity{} },
		)
	case s.next.Leaf() != nil && (!covers(s.next, hosts) || !s.trusts(s.next) || !now.Before(s.next.NotAfter())):
		s.bundle = s.without(s.next)
		return s.make(hosts, times, now, func(out *servingCerts, made certs.Identity) { out.next = made })
	case s.next.Leaf() != nil && published && !now.Before(s.promoteAt(times)):
		return servingCerts{current: s.next, bundle: s.bundle}, nil
	case s.next.Leaf() == nil && (!now.Before(renewServingAt(s.current)) || !covers(s.current, hosts)):
		return s.make(hosts, times, now, func(out *servingCerts, made certs.Identity) { out.next = made })
	}
	s.bundle = pruned(s.bundle, now)
	return s, nil
}

// make adds a new leaf, and its CA to the CAs that have not ended.
func (s servingCerts) make(
	hosts []string, times servingTimes, now time.Time, put func(*servingCerts, certs.Identity),
) (servingCerts, error) {
	serving, err := certs.NewServing(v1alpha1.WebhookSecretName, hosts, now, times.life)
	if err != nil {
		return s, err
	}
	made, err := certs.ParseIdentity(serving.CertPEM, serving.KeyPEM)
	if err != nil {
		return s, err
	}
	put(&s, made)
	s.bundle = append(pruned(s.bundle, now), serving.CAPEM...)
	return s, nil
}

// nextStep returns when the next step is due.
func (s servingCerts) nextStep(times servingTimes) time.Time {
	if s.next.Leaf() != nil {
		return s.promoteAt(times)
	}
	return renewServingAt(s.current)
}

// promoteAt returns the earliest time at which the next leaf may be served.
func (s servingCerts) promoteAt(times servingTimes) time.Time {
	return s.next.NotBefore().Add(certs.ClockSkew + times.settle)
}

// renewServingAt counts from the creation of a leaf. Its validity begins earlier, for clocks that are late.
func renewServingAt(leaf certs.Identity) time.Time {
	return certs.RenewAt(leaf.NotBefore().Add(certs.ClockSkew), leaf.NotAfter())
}

// trusts reports whether the bundle has the CA of a leaf.
func (s servingCerts) trusts(leaf certs.Identity) bool {
	return slices.ContainsFunc(parsed(s.bundle), func(ca *certs.CA) bool { return ca.Issued(leaf.Leaf()) })
}

// without returns the bundle without the CA of a leaf that was never served.
func (s servingCerts) without(leaf certs.Identity) []byte {
	return selectCAs(s.bundle, func(ca *certs.CA) bool { return !ca.Issued(leaf.Leaf()) })
}

// pruned returns a bundle without the CAs that have ended.
func pruned(bundle []byte, now time.Time) []byte {
	return selectCAs(bundle, func(ca *certs.CA) bool { return now.Before(ca.NotAfter()) })
}

func selectCAs(bundle []byte, keep func(*certs.CA) bool) []byte {
	var out bytes.Buffer
	for _, ca := range parsed(bundle) {
		if keep(ca) {
			out.Write(ca.CertPEM())
		}
	}
	return out.Bytes()
}

// parsed returns the certificates of a bundle, or nil if it cannot be parsed.
func parsed(bundle []byte) []*certs.CA {
	cas, err := certs.ParseCAs(bundle)
	if err != nil {
		return nil
	}
	return cas
}

// covers reports whether a leaf is valid for every host.
func covers(leaf certs.Identity, hosts []string) bool {
	return !slices.ContainsFunc(hosts, func(host string) bool { return leaf.Leaf().VerifyHostname(host) != nil })
}

// webhookHosts returns the names that apiservers use to call the webhooks of a configuration: by Service or by URL.
func webhookHosts(configuration *admissionv1.MutatingWebhookConfiguration) ([]string, error) {
	hosts := map[string]bool{}
	for i := range configuration.Webhooks {
		switch client := configuration.Webhooks[i].ClientConfig; {
		case client.Service != nil:
			hosts[client.Service.Name+"."+client.Service.Namespace+".svc"] = true
		case client.URL != nil:
			u, err := url.Parse(ptr.Deref(client.URL, ""))
			if err != nil || u.Hostname() == "" {
				return nil, fmt.Errorf("webhooks[%d].clientConfig.url: it has no host", i)
			}
			hosts[u.Hostname()] = true
		}
	}
	if len(hosts) == 0 {
		return nil, errors.New("webhooks: the list is empty")
	}
	return slices.Sorted(maps.Keys(hosts)), nil
}

// publishedEverywhere reports whether every webhook of a configuration has exactly this bundle.
func publishedEverywhere(configuration *admissionv1.MutatingWebhookConfiguration, bundle []byte) bool {
	return !slices.ContainsFunc(configuration.Webhooks, func(w admissionv1.MutatingWebhook) bool {
		return !bytes.Equal(w.ClientConfig.CABundle, bundle)
	})
}
