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
	// webhookLifetime is that of a serving certificate and of the CA that it has to itself.
	webhookLifetime = 90 * 24 * time.Hour
	// webhookSettle is how long apiservers have known a new CA before its leaf is served: they watch the configuration,
	// and see a change within seconds.
	webhookSettle = time.Minute

	// A leaf that apiservers may not trust yet waits under these keys.
	nextCertKey, nextKeyKey = "next.crt", "next.key"
	webhookCAKey            = "ca.crt"
)

// servingCerts is what the webhook is served with: a leaf, the one after it, and the CAs that apiservers are to
// trust. Each leaf has a CA of its own, and of no CA there is a key.
type servingCerts struct {
	current, next certs.Identity // zero: none
	bundle        []byte
}

// parseServing reads what data has written. Where the leaf is of no use all is as if there was nothing.
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
			s.next = certs.Identity{} // another is made
		}
	}
	return s, nil
}

// data is the content of the Secret.
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

// servingTimes are the webhook's times.
type servingTimes struct{ life, settle time.Duration }

// step makes the next move of a rotation, if one is due: a new leaf waits until its CA is known, and the CA before it
// stays until it ends. Published says whether the whole bundle is in the configuration that apiservers read.
func (s servingCerts) step(hosts []string, published bool, times servingTimes, now time.Time) (servingCerts, error) {
	switch {
	case s.current.Leaf() == nil || !now.Before(s.current.NotAfter()) || !s.trusts(s.current):
		// Apiservers trust nothing that is there: nothing is lost at once.
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

// make adds a new leaf, and its CA to those that are not over.
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

// nextStep is when the next step is due.
func (s servingCerts) nextStep(times servingTimes) time.Time {
	if s.next.Leaf() != nil {
		return s.promoteAt(times)
	}
	return renewServingAt(s.current)
}

// promoteAt is when the next leaf may be served, at the earliest.
func (s servingCerts) promoteAt(times servingTimes) time.Time {
	return s.next.NotBefore().Add(certs.ClockSkew + times.settle)
}

// renewServingAt counts from when a leaf was made, and not from the earlier begin that it has for clocks that are late.
func renewServingAt(leaf certs.Identity) time.Time {
	return certs.RenewAt(leaf.NotBefore().Add(certs.ClockSkew), leaf.NotAfter())
}

// trusts says whether a leaf is of a CA in the bundle.
func (s servingCerts) trusts(leaf certs.Identity) bool {
	return slices.ContainsFunc(parsed(s.bundle), func(ca *certs.CA) bool { return ca.Issued(leaf.Leaf()) })
}

// without is the bundle without the CA of a leaf that was never served.
func (s servingCerts) without(leaf certs.Identity) []byte {
	return selectCAs(s.bundle, func(ca *certs.CA) bool { return !ca.Issued(leaf.Leaf()) })
}

// pruned is a bundle without the CAs whose time is over.
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

// parsed is nothing for a bundle that can't be read, which holds no CA to trust.
func parsed(bundle []byte) []*certs.CA {
	cas, err := certs.ParseCAs(bundle)
	if err != nil {
		return nil
	}
	return cas
}

// covers says whether a leaf is good for every host.
func covers(leaf certs.Identity, hosts []string) bool {
	return !slices.ContainsFunc(hosts, func(host string) bool { return leaf.Leaf().VerifyHostname(host) != nil })
}

// webhookHosts are the names under which apiservers call the webhooks of a configuration: by Service or by URL.
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
		return nil, errors.New("webhooks: there is none")
	}
	return slices.Sorted(maps.Keys(hosts)), nil
}

// publishedEverywhere says whether every webhook of a configuration has exactly a bundle.
func publishedEverywhere(configuration *admissionv1.MutatingWebhookConfiguration, bundle []byte) bool {
	return !slices.ContainsFunc(configuration.Webhooks, func(w admissionv1.MutatingWebhook) bool {
		return !bytes.Equal(w.ClientConfig.CABundle, bundle)
	})
}
