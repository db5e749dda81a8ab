package controller

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// kubeconfigSuffix and kubeconfigKey are Cluster API's contract for control-plane providers.
	kubeconfigSuffix = "-kubeconfig"
	kubeconfigKey    = "value"
	// connectPort stands in the authority of CONNECT; the gateways route by its host alone.
	connectPort = 6443
	// kubeadmName is a name that every serving certificate of kubeadm has.
	kubeadmName = "kubernetes"
)

// errInvalidKubeconfig is what can't be read as a kubeconfig with an entry to change. It never holds what was read.
var errInvalidKubeconfig = errors.New("the Secret holds no usable kubeconfig")

// route is how clients are to reach one workload cluster, and how to know a kubeconfig that leads there already.
type route struct {
	hostname      string // the tunnel hostname; empty where there can be none
	mode          v1alpha1.KubeconfigMode
	tlsServerName string // what the user wants verified in mode connect
	apiServer     model.Endpoint
	connect       model.Endpoint
	resolves      answer
	fallback      string // the original server, where nobody has kept it
}

// original is what the provider wrote.
type original struct{ server, tlsServerName, proxyURL string }

// rewriteKubeconfig makes the kubeconfig in a Secret lead through the tunnel, and returns the server that it then has.
// Only server, tls-server-name and proxy-url of one entry change. It keeps what the provider wrote: once, and again when
// the provider has written another server, but not when the provider has only dropped what it doesn't know, as Cluster
// API's certificate rotation does.
func rewriteKubeconfig(secret *corev1.Secret, cluster string, r route) (server string, err error) {
	config, entry, err := loadKubeconfig(secret, cluster)
	if err != nil {
		return "", err
	}
	was, known := keptOriginal(secret)
	switch {
	case !r.ours(secret, *entry):
		was = r.provided(*entry)
	case !known:
		was = original{server: r.fallback}
	}
	target := r.target(*entry, was)
	if err := storeEntry(secret, config, entry, target); err != nil {
		return "", err
	}
	was.keep(secret, target.server)
	return target.server, nil
}

// restoreKubeconfig gives the kubeconfig in a Secret back to its provider. It leaves one alone that does not lead
// through a tunnel.
func restoreKubeconfig(secret *corev1.Secret, cluster string, r route) error {
	config, entry, err := loadKubeconfig(secret, cluster)
	if err != nil {
		return err
	}
	was, known := keptOriginal(secret)
	switch {
	case !r.ours(secret, *entry):
		was = r.provided(*entry)
	case known:
	case r.fallback != "" && r.leadsThere(*entry):
		was = original{server: r.fallback}
	default:
		return nil // nothing says that it is ours, or nothing says what it was
	}
	forgetOriginal(secret)
	return storeEntry(secret, config, entry, was)
}

// ours says whether Fairlead wrote the server of an entry.
func (r route) ours(secret *corev1.Secret, entry clientcmdapi.Cluster) bool {
	return entry.Server == secret.Annotations[v1alpha1.WrittenServerAnnotation] ||
		entry.Server == serverURL(r.apiServer) || (r.hostname != "" && hostOf(entry.Server) == r.hostname)
}

// leadsThere says whether an entry names the tunnel itself, and not only the gateways.
func (r route) leadsThere(entry clientcmdapi.Cluster) bool {
	return r.hostname != "" && (entry.TLSServerName == r.hostname || hostOf(entry.Server) == r.hostname)
}

// provided is what a provider wrote into an entry, less what is left of ours there: some change the server alone.
func (r route) provided(entry clientcmdapi.Cluster) original {
	o := original{entry.Server, entry.TLSServerName, entry.ProxyURL}
	if o.proxyURL == proxyURL(r.connect) {
		o.proxyURL, o.tlsServerName = "", ""
	}
	if o.tlsServerName == r.hostname {
		o.tlsServerName = ""
	}
	return o
}

// target is what an entry has to be.
func (r route) target(entry clientcmdapi.Cluster, was original) original {
	if r.mode == v1alpha1.KubeconfigModeConnect {
		return original{
			server:        serverURL(model.Endpoint{Host: r.hostname, Port: connectPort}),
			tlsServerName: r.verifiedName(was),
			proxyURL:      proxyURL(r.connect),
		}
	}
	direct := serverURL(model.Endpoint{Host: r.hostname, Port: r.apiServer.Port})
	if r.resolves == yes || (r.resolves == unknown && entry.Server == direct) {
		return original{server: direct}
	}
	// tls-server-name is also the SNI that client-go sends, and the SNI is the route.
	return original{server: serverURL(r.apiServer), tlsServerName: r.hostname}
}

// verifiedName is the name of the serving certificate that clients verify in mode connect.
func (r route) verifiedName(was original) string {
	if r.tlsServerName != "" {
		return r.tlsServerName
	}
	if was.tlsServerName != "" {
		return was.tlsServerName
	}
	if host := hostOf(was.server); model.ValidateDNSName(host) == nil {
		return host
	}
	return kubeadmName
}

// loadKubeconfig reads the kubeconfig of a Secret and finds its entry: that of the current context, else the one that
// is named like the Cluster.
func loadKubeconfig(secret *corev1.Secret, cluster string) (*clientcmdapi.Config, *clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load(secret.Data[kubeconfigKey])
	if err != nil {
		// The parser's own words may quote credentials.
		return nil, nil, fmt.Errorf("%w: key %s can't be parsed", errInvalidKubeconfig, kubeconfigKey)
	}
	if current := config.Contexts[config.CurrentContext]; current != nil && config.Clusters[current.Cluster] != nil {
		return config, config.Clusters[current.Cluster], nil
	}
	if entry := config.Clusters[cluster]; entry != nil {
		return config, entry, nil
	}
	return nil, nil, fmt.Errorf("%w: its current context names no cluster entry, and no entry is named %s", errInvalidKubeconfig, cluster)
}

// storeEntry changes one entry of a kubeconfig in a Secret, and not a byte where nothing differs.
func storeEntry(secret *corev1.Secret, config *clientcmdapi.Config, entry *clientcmdapi.Cluster, want original) error {
	if want == (original{entry.Server, entry.TLSServerName, entry.ProxyURL}) {
		return nil
	}
	entry.Server, entry.TLSServerName, entry.ProxyURL = want.server, want.tlsServerName, want.proxyURL
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	secret.Data[kubeconfigKey] = data
	return nil
}

// keptOriginal reads what keep has written.
func keptOriginal(secret *corev1.Secret) (o original, known bool) {
	o.server, known = secret.Annotations[v1alpha1.OriginalServerAnnotation]
	o.tlsServerName = secret.Annotations[v1alpha1.OriginalTLSServerNameAnnotation]
	o.proxyURL = string(secret.Data[v1alpha1.OriginalProxyURLKey])
	return o, known
}

// noted says whether anything that keep writes as an annotation is on a Secret, which may be nil.
func noted(secret *corev1.Secret) bool {
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

// keep notes beside a kubeconfig what the provider wrote, and what was written instead. An unknown original is not noted:
// the Cluster may know its endpoint later.
func (o original) keep(secret *corev1.Secret, written string) {
	forgetOriginal(secret)
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[v1alpha1.WrittenServerAnnotation] = written
	if o.server != "" {
		secret.Annotations[v1alpha1.OriginalServerAnnotation] = o.server
	}
	if o.tlsServerName != "" {
		secret.Annotations[v1alpha1.OriginalTLSServerNameAnnotation] = o.tlsServerName
	}
	if o.proxyURL != "" {
		secret.Data[v1alpha1.OriginalProxyURLKey] = []byte(o.proxyURL)
	}
}

func forgetOriginal(secret *corev1.Secret) {
	delete(secret.Annotations, v1alpha1.OriginalServerAnnotation)
	delete(secret.Annotations, v1alpha1.WrittenServerAnnotation)
	delete(secret.Annotations, v1alpha1.OriginalTLSServerNameAnnotation)
	delete(secret.Data, v1alpha1.OriginalProxyURLKey)
}

func serverURL(e model.Endpoint) string { return "https://" + e.String() }

// proxyURL is http and never https: client-go verifies a proxy with the CA of the workload cluster.
func proxyURL(e model.Endpoint) string { return "http://" + e.String() }

// hostOf is the host of a URL, or empty: in lower case and without the dot of a rooted name, as certificates have it. EKS
// gives its endpoints in upper case.
func hostOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}
