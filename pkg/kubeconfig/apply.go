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

// Apply makes the kubeconfig in the Secret of a Cluster lead as decided, and says whether anything has changed. It keeps what
// the provider wrote: once, and again when the provider has written another server, but not when the provider has only
// dropped what it doesn't know, as Cluster API's certificate rotation does. After an error nothing has changed.
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

// Restore gives the kubeconfig in the Secret of a Cluster back to its provider, and says whether anything has changed. It
// leaves one alone that does not lead through the gateways and bears no note of ours. Of the decision its mode and its way
// do not matter.
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
			was = Way{Server: d.Endpoint}
		default:
			return nil // nothing says that it is ours, or nothing says what it was
		}
		forget(secret)
		return store(secret, config, entry, was)
	})
}

// change lets do change a Secret, unless it fails.
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

// original is what the provider wrote, as far as it is known.
func (d Decision) original(secret *corev1.Secret, entry clientcmdapi.Cluster) Way {
	was, known := kept(secret)
	switch {
	case !d.ours(secret, entry):
		was = d.provided(secret, entry)
		was.Server = cmp.Or(was.Server, d.Endpoint) // an entry without a server says nothing: the next change would take the endpoint
		return was
	case !known:
		return Way{Server: d.Endpoint}
	}
	return was
}

// ours says whether Fairlead wrote the server of an entry. In the modes with a proxy that is the provider's own, so a
// provider that writes it again is told by nothing, and what is kept is what it writes.
func (d Decision) ours(secret *corev1.Secret, entry clientcmdapi.Cluster) bool {
	written, noted := secret.Annotations[v1alpha1.WrittenServerAnnotation]
	return (noted && entry.Server == written) ||
		(d.Gateways.APIServer != (model.Endpoint{}) && entry.Server == serverURL(d.Gateways.APIServer)) ||
		(d.Hostname != "" && Host(entry.Server) == d.Hostname)
}

// leadsThere says whether an entry names the tunnel itself, and not only the gateways.
func (d Decision) leadsThere(entry clientcmdapi.Cluster) bool {
	return d.Hostname != "" && (entry.TLSServerName == d.Hostname || Host(entry.Server) == d.Hostname)
}

// provided is what a provider wrote into an entry, less what is left of ours there: some change the server alone.
func (d Decision) provided(secret *corev1.Secret, entry clientcmdapi.Cluster) Way {
	w := wayOf(entry)
	ours := w.ProxyURL == connectURL(d.Gateways.Connect) || (Noted(secret) && WithoutCredentials(w.ProxyURL) == WithoutCredentials(d.Way.ProxyURL))
	if w.ProxyURL != "" && ours {
		w.ProxyURL, w.TLSServerName = "", ""
	}
	if w.TLSServerName == d.Hostname {
		w.TLSServerName = ""
	}
	return w
}

// target is what an entry has to be where the provider wrote this.
func (d Decision) target(was Way) (Way, error) {
	want := d.Way
	switch d.Mode {
	case v1alpha1.KubeconfigModeConnect:
		if want.TLSServerName == "" {
			want.TLSServerName = verifiedName(was)
		}
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		if was.Server == "" {
			return Way{}, fmt.Errorf("%w: nothing says what its server was: set spec.controlPlaneEndpoint of the Cluster, or let its provider write the Secret again", ErrInvalid)
		}
		want.Server = was.Server
		if want.TLSServerName == "" {
			want.TLSServerName = was.TLSServerName
		}
	}
	return want, nil
}

// verifiedName is the name of the serving certificate that clients verify in mode connect.
func verifiedName(was Way) string {
	if was.TLSServerName != "" {
		return was.TLSServerName
	}
	if host := Host(was.Server); model.ValidateDNSName(host) == nil {
		return host
	}
	return kubeadmName
}

// Noted says whether anything is on a Secret, which may be nil, that Apply writes as an annotation.
func Noted(secret *corev1.Secret) bool {
	if secret == nil {
		return false
	}
	for _, key := range []string{v1alpha1.OriginalServerAnnotation, v1alpha1.WrittenServerAnnotation, v1alpha1.OriginalTLSServerNameAnnotation} {
		if _, ok := secret.Annotations[key]; ok {
			return true
		}
	}
	return false
}

// kept reads what keep has written.
func kept(secret *corev1.Secret) (w Way, known bool) {
	w.Server = secret.Annotations[v1alpha1.OriginalServerAnnotation]
	known = w.Server != "" // keep notes no empty one
	w.TLSServerName = secret.Annotations[v1alpha1.OriginalTLSServerNameAnnotation]
	if proxy := string(secret.Data[v1alpha1.OriginalProxyURLKey]); usableProxy(proxy) {
		w.ProxyURL = proxy
	}
	return w, known
}

// usableProxy says whether a kubeconfig with this proxy-url can be used: client-go refuses one that is no URL. Others are
// neither kept nor restored.
func usableProxy(proxyURL string) bool {
	_, err := url.Parse(proxyURL)
	return err == nil && utf8.ValidString(proxyURL)
}

// keep notes beside a kubeconfig what the provider wrote, and what was written instead. An unknown original is not noted:
// the Cluster may know its endpoint later. A proxy may hold credentials, so it is not in an annotation.
func keep(secret *corev1.Secret, was Way, written string) {
	forget(secret)
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

func forget(secret *corev1.Secret) {
	delete(secret.Annotations, v1alpha1.OriginalServerAnnotation)
	delete(secret.Annotations, v1alpha1.WrittenServerAnnotation)
	delete(secret.Annotations, v1alpha1.OriginalTLSServerNameAnnotation)
	delete(secret.Data, v1alpha1.OriginalProxyURLKey)
}
