// Package kubeconfig decides how the kubeconfig of a workload cluster leads to it, and writes that into the kubeconfig's
// Secret. In go Secrets, Tunnels and what edges see; out come decisions and changed Secrets. It knows no Kubernetes client and
// dials nobody, so that the controller and the webhook make the same bytes from the same objects.
//
// Only three fields of one entry ever change: server, tls-server-name and proxy-url. Names of entries, users with their
// certificates, the Secret's type, labels and owners are the provider's: Cluster API's own rotation fails without them.
package kubeconfig

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// Suffix is, by Cluster API's contract for control-plane providers, what the name of the Secret has after the Cluster's.
	Suffix = "-kubeconfig"
	// Key is, by the same contract, the key of the Secret that holds the kubeconfig.
	Key = "value"
	// connectPort stands in the authority of CONNECT; the gateways route by its host alone.
	connectPort = 6443
	// kubeadmName is a name that every serving certificate of kubeadm has.
	kubeadmName = "kubernetes"
)

// ErrInvalid is what can't be read as a kubeconfig with an entry to change, or misses what a mode needs. It never holds what
// was read.
var ErrInvalid = errors.New("the Secret holds no usable kubeconfig")

// Way is what one entry of a kubeconfig says about how to reach the apiserver. The zero value is no way.
type Way struct {
	Server        string // what clients connect to
	TLSServerName string // the name that they verify and send as SNI, where it is not the server's
	ProxyURL      string // may hold credentials
}

// String is the way without credentials.
func (w Way) String() string {
	s := w.Server
	if w.TLSServerName != "" {
		s += " as " + w.TLSServerName
	}
	if w.ProxyURL != "" {
		s += " by the proxy " + WithoutCredentials(w.ProxyURL)
	}
	return s
}

// Gateways is where clients reach the gateways of an installation. The zero value is an installation without any.
type Gateways struct {
	APIServer model.Endpoint // the listener that routes by SNI
	Connect   model.Endpoint // the listener that routes by the authority of CONNECT
}

// Load reads the kubeconfig of a Secret and finds the entry that is in use: that of the current context, else the one that
// is named like the Cluster. The error is ErrInvalid.
func Load(secret *corev1.Secret, cluster string) (*clientcmdapi.Config, *clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load(secret.Data[Key])
	if err != nil {
		// The parser's own words may quote credentials.
		return nil, nil, fmt.Errorf("%w: key %s can't be parsed", ErrInvalid, Key)
	}
	if current := config.Contexts[config.CurrentContext]; current != nil && config.Clusters[current.Cluster] != nil {
		return config, config.Clusters[current.Cluster], nil
	}
	if entry := config.Clusters[cluster]; entry != nil {
		return config, entry, nil
	}
	return nil, nil, fmt.Errorf("%w: its current context names no cluster entry, and no entry is named %s", ErrInvalid, cluster)
}

// Read says where a kubeconfig leads now. The error is ErrInvalid.
func Read(secret *corev1.Secret, cluster string) (Way, error) {
	_, entry, err := Load(secret, cluster)
	if err != nil {
		return Way{}, err
	}
	return wayOf(*entry), nil
}

func wayOf(entry clientcmdapi.Cluster) Way {
	return Way{entry.Server, entry.TLSServerName, entry.ProxyURL}
}

// store changes one entry of a kubeconfig in a Secret, and not a byte where nothing differs. The error is ErrInvalid.
func store(secret *corev1.Secret, config *clientcmdapi.Config, entry *clientcmdapi.Cluster, want Way) error {
	if want == wayOf(*entry) {
		return nil
	}
	entry.Server, entry.TLSServerName, entry.ProxyURL = want.Server, want.TLSServerName, want.ProxyURL
	data, err := clientcmd.Write(*config)
	if err != nil { // the error may quote what was read
		return fmt.Errorf("%w: the server, name or proxy that annotations of the Secret note cannot be written: remove these annotations", ErrInvalid)
	}
	secret.Data[Key] = data
	return nil
}

// EndpointURL is the server that providers write for an endpoint of a Cluster; empty where there is none.
func EndpointURL(host string, port int32) string {
	if host == "" || port <= 0 || port > 65535 {
		return ""
	}
	return serverURL(model.Endpoint{Host: host, Port: uint16(port)})
}

// WithoutCredentials is a proxy-url that may be shown; empty if it is none.
func WithoutCredentials(proxyURL string) string {
	u, err := url.Parse(proxyURL)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}

// Host is the host of a URL, or empty: in lower case and without the dot of a rooted name, as certificates have it. EKS
// gives its endpoints in upper case.
func Host(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

func serverURL(e model.Endpoint) string {
	if e == (model.Endpoint{}) {
		return ""
	}
	return "https://" + e.String()
}

// connectURL is http and never https: client-go verifies a proxy with the CA of the workload cluster.
func connectURL(e model.Endpoint) string {
	if e == (model.Endpoint{}) {
		return ""
	}
	return "http://" + e.String()
}
