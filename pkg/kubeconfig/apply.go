package kubeconfig

import (
	"cmp"
	"fmt"
	"net/url"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Apply makes the kubeconfig in the Secret of a Cluster lead as decided, and reports whether anything has changed. It
// stores what the provider wrote: once, and again if the provider has written another server, but not if the provider
// has only dropped unknown keys and annotations, as Cluster API's certificate rotation does. After an error nothing
// has changed.
func Apply(secret *corev1.Secret, cluster string, d Decision) (changed bool, err error) {
	return change(secret, func(secret *corev1.Secret) error {
		config, entry, err := Load(secret, cluster)
		if err != nil {
			return err
		}
		was := d.original(secret, *entry)
		target, err := d.target(was)
		if err != nil {
			return err
		}
		if err := store(secret, config, entry, target); err != nil {
			return err
		}
		keep(secret, was, target.Server)
		return nil
	})
}

// Restore restores what the provider wrote in the kubeconfig Secret of a Cluster, and reports whether anything has
// changed. It changes nothing if the kubeconfig does not lead through the gateways and has none of Fairlead's
// annotations. It ignores the mode and the way of the decision.
func Restore(secret *corev1.Secret, cluster string, d Decision) (changed bool, err error) {
	return change(secret, func(secret *corev1.Secret) error {
		config, entry, err := Load(secret, cluster)
		if err != nil {
			return err
		}
		was, known := kept(secret)
		switch {
		case !d.ours(secret, *entry):
			was = d.provided(secret, *entry)
		case known:
		case d.Endpoint != "" && d.leadsThere(*entry):
			was = Endpoint{Server: d.Endpoint}
		default:
			return nil // it is not known to be ours, or its original is unknown
		}
		clearNotes(secret)
		return store(secret, config, entry, was)
	})
}

// change applies do to a copy of a Secret, and copies the result back if there is no error.
func change(secret *corev1.Secret, do func(*corev1.Secret) error) (bool, error) {
	want := secret.DeepCopy()
	if err := do(want); err != nil {
		return false, err
	}
	if equality.Semantic.DeepEqual(want, secret) {
		return false, nil
	}
	want.DeepCopyInto(secret)
	return true, nil
}

// original returns what the provider wrote, as far as it is known.
func (d Decision) original(secret *corev1.Secret, entry clientcmdapi.Cluster) Endpoint {
	was, known := kept(secret)
	switch {
	case !d.ours(secret, entry):
		was = d.provided(secret, entry)
		// an entry without a server is incomplete: the next change would use the endpoint
		was.Server = cmp.Or(was.Server, d.Endpoint)
		return was
	case !known:
		return Endpoint{Server: d.Endpoint}
	}
	return was
}

// ours reports whether Fairlead wrote the server of an entry. In the modes with a proxy the server is the provider's
// own: if the provider writes it again, this cannot be detected, and the stored original is equal.
func (d Decision) ours(secret *corev1.Secret, entry clientcmdapi.Cluster) bool {
	written, noted := secret.Annotations[v1alpha1.WrittenServerAnnotation]
	return (noted && entry.Server == written) ||
		(d.Gateways.APIServer != (model.Endpoint{}) && entry.Server == serverURL(d.Gateways.APIServer)) ||
		(d.Hostname != "" && Host(entry.Server) == d.Hostname)
}

// leadsThere reports whether an entry names the tunnel itself, and not only the gateways.
func (d Decision) leadsThere(entry clientcmdapi.Cluster) bool {
	return d.Hostname != "" && (entry.TLSServerName == d.Hostname || Host(entry.Server) == d.Hostname)
}

// provided returns what a provider wrote into an entry, without the rest of Fairlead's: some providers change only the
// server.
func (d Decision) provided(secret *corev1.Secret, entry clientcmdapi.Cluster) Endpoint {
	e := wayOf(entry)
	ours := e.ProxyURL == connectURL(d.Gateways.Connect) ||
		(Annotated(secret) && WithoutCredentials(e.ProxyURL) == WithoutCredentials(d.Target.ProxyURL))
	if e.ProxyURL != "" && ours {
		e.ProxyURL, e.TLSServerName = "", ""
	}
	if e.TLSServerName == d.Hostname {
		e.TLSServerName = ""
	}
	return e
}

// target returns the required entry, if the provider wrote was.
func (d Decision) target(was Endpoint) (Endpoint, error) {
	want := d.Target
	switch d.Mode {
	case v1alpha1.KubeconfigModeConnect:
		if want.TLSServerName == "" {
			want.TLSServerName = verifiedName(was)
		}
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		if was.Server == "" {
			return Endpoint{}, fmt.Errorf(
				"%w: its original server is unknown: set spec.controlPlaneEndpoint of the Cluster, or let its provider write the "+
					"Secret again",
				ErrInvalid,
			)
		}
		want.Server = was.Server
		if want.TLSServerName == "" {
			want.TLSServerName = was.TLSServerName
		}
	}
	return want, nil
}

// verifiedName returns the name of the serving certificate that clients verify in mode connect.
func verifiedName(was Endpoint) string {
	if was.TLSServerName != "" {
		return was.TLSServerName
	}
	if host := Host(was.Server); model.ValidateDNSName(host) == nil {
		return host
	}
	return kubeadmName
}

// Annotated reports whether a Secret has any annotation that Apply writes. It returns false for nil.
func Annotated(secret *corev1.Secret) bool {
	if secret == nil {
		return false
	}
	for _, key := range []string{
		v1alpha1.OriginalServerAnnotation, v1alpha1.WrittenServerAnnotation,
		v1alpha1.OriginalTLSServerNameAnnotation,
	} {
		if _, ok := secret.Annotations[key]; ok {
			return true
		}
	}
	return false
}

// kept returns what keep has stored. known is false if the original server is unknown.
func kept(secret *corev1.Secret) (e Endpoint, known bool) {
	e.Server = secret.Annotations[v1alpha1.OriginalServerAnnotation]
	known = e.Server != "" // keep stores no empty server
	e.TLSServerName = secret.Annotations[v1alpha1.OriginalTLSServerNameAnnotation]
	if proxy := string(secret.Data[v1alpha1.OriginalProxyURLKey]); usableProxy(proxy) {
		e.ProxyURL = proxy
	}
	return e, known
}

// usableProxy reports whether a kubeconfig with this proxy-url is valid: client-go rejects a proxy-url that is not a
// URL. Invalid ones are neither stored nor restored.
func usableProxy(proxyURL string) bool {
	_, err := url.Parse(proxyURL)
	return err == nil && utf8.ValidString(proxyURL)
}

// keep stores what the provider wrote, and what was written instead. It does not store an unknown original, because
// the Cluster may have an endpoint later. A proxy-url may contain credentials, so it is not stored in an annotation.
func keep(secret *corev1.Secret, was Endpoint, written string) {
	clearNotes(secret)
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[v1alpha1.WrittenServerAnnotation] = written
	if was.Server != "" {
		secret.Annotations[v1alpha1.OriginalServerAnnotation] = was.Server
	}
	if was.TLSServerName != "" {
		secret.Annotations[v1alpha1.OriginalTLSServerNameAnnotation] = was.TLSServerName
	}
	if was.ProxyURL != "" && usableProxy(was.ProxyURL) {
		secret.Data[v1alpha1.OriginalProxyURLKey] = []byte(was.ProxyURL)
	}
}

func clearNotes(secret *corev1.Secret) {
	delete(secret.Annotations, v1alpha1.OriginalServerAnnotation)
	delete(secret.Annotations, v1alpha1.WrittenServerAnnotation)
	delete(secret.Annotations, v1alpha1.OriginalTLSServerNameAnnotation)
	delete(secret.Data, v1alpha1.OriginalProxyURLKey)
}
