// Package kubeconfig decides how the kubeconfig of a workload cluster leads to it, and writes that into the
// kubeconfig's Secret. The input is Secrets, Tunnels and what edges report; the output is decisions and changed
// Secrets. The package uses no Kubernetes client and opens no connection, so that the controller and the webhook
// create the same bytes from the same objects.
//
// Only three fields of one entry ever change: server, tls-server-name and proxy-url. Names of entries, users with
// their certificates, and the Secret's type, labels and owners belong to the provider: Cluster API's own rotation
// fails without them.
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
	// Suffix is appended to the Cluster's name to name the Secret, by Cluster API's contract for control-plane
	// providers.
	Suffix = "-kubeconfig"
	// Key is the key of the kubeconfig in the Secret, by the same contract.
	Key = "value"
	// connectPort is the port in the authority of CONNECT. The gateways route only by its host.
	connectPort = 6443
	// kubeadmName is a name in every serving certificate of kubeadm.
	kubeadmName = "kubernetes"
)

// ErrInvalid means that a Secret contains no kubeconfig with an entry to change, or lacks what a mode needs. It never
// contains any content of the Secret.
var ErrInvalid = errors.New("the Secret holds no usable kubeconfig")

// Endpoint is how one entry of a kubeconfig reaches the apiserver. The zero value is no endpoint.
type Endpoint struct {
	Server        string // what clients connect to
	TLSServerName string // the name that clients verify and send as SNI, if it is not the server's
	ProxyURL      string // may contain credentials
}

// String returns the way without credentials.
func (e Endpoint) String() string {
	s := e.Server
	if e.TLSServerName != "" {
		s += " as " + e.TLSServerName
	}
	if e.ProxyURL != "" {
		s += " by the proxy " + WithoutCredentials(e.ProxyURL)
	}
	return s
}

// Gateways are the addresses at which clients reach the gateways of an installation. The zero value means that it has
// none.
type Gateways struct {
	APIServer model.Endpoint // the listener that routes by SNI
	Connect   model.Endpoint // the listener that routes by the authority of CONNECT
}

// Load parses the kubeconfig of a Secret and returns the entry in use: that of the current context, else the one with
// the name of the Cluster. The error wraps ErrInvalid.
func Load(secret *corev1.Secret, cluster string) (*clientcmdapi.Config, *clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load(secret.Data[Key])
	if err != nil {
		// The parser's error may quote credentials.
		return nil, nil, fmt.Errorf("%w: cannot parse key %s", ErrInvalid, Key)
	}
	if current := config.Contexts[config.CurrentContext]; current != nil && config.Clusters[current.Cluster] != nil {
		return config, config.Clusters[current.Cluster], nil
	}
	if entry := config.Clusters[cluster]; entry != nil {
		return config, entry, nil
	}
	return nil, nil, fmt.Errorf(
		"%w: its current context names no cluster entry, and no entry is named %s", ErrInvalid, cluster,
	)
}

// Read returns the current way of a kubeconfig. The error wraps ErrInvalid.
func Read(secret *corev1.Secret, cluster string) (Endpoint, error) {
	_, entry, err := Load(secret, cluster)
	if err != nil {
		return Endpoint{}, err
	}
	return wayOf(*entry), nil
}

func wayOf(entry clientcmdapi.Cluster) Endpoint {
	return Endpoint{entry.Server, entry.TLSServerName, entry.ProxyURL}
}

// store changes one entry of a kubeconfig in a Secret. It changes no byte if the entry is as wanted. The error wraps
// ErrInvalid.
func store(secret *corev1.Secret, config *clientcmdapi.Config, entry *clientcmdapi.Cluster, want Endpoint) error {
	if want == wayOf(*entry) {
		return nil
	}
	entry.Server, entry.TLSServerName, entry.ProxyURL = want.Server, want.TLSServerName, want.ProxyURL
	data, err := clientcmd.Write(*config)
	if err != nil { // the error may quote the Secret
		return fmt.Errorf(
			"%w: the server, name or proxy in the annotations of the Secret is invalid: remove these annotations", ErrInvalid,
		)
	}
	secret.Data[Key] = data
	return nil
}

// EndpointURL returns the server that providers write for an endpoint of a Cluster, or "" if the endpoint is not set.
func EndpointURL(host string, port int32) string {
	if host == "" || port <= 0 || port > 65535 {
		return ""
	}
	return serverURL(model.Endpoint{Host: host, Port: uint16(port)})
}

// WithoutCredentials returns a proxy-url without credentials, or "" if it is invalid.
func WithoutCredentials(proxyURL string) string {
	u, err := url.Parse(proxyURL)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}

// Host returns the host of a URL, in lower case and without a trailing dot, as in certificates; or "" if the URL is
// invalid. EKS has endpoints in upper case.
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

// connectURL uses http and never https, because client-go verifies a proxy with the CA of the workload cluster.
func connectURL(e model.Endpoint) string {
	if e == (model.Endpoint{}) {
		return ""
	}
	return "http://" + e.String()
}
