package kubeconfig

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Decision is how a kubeconfig must lead to a workload cluster, and how to recognise one that already does.
type Decision struct {
	Mode     v1alpha1.KubeconfigMode // never auto
	Target   Endpoint                // except what depends on what the provider wrote
	Hostname string                  // the tunnel hostname; empty if there is none
	Gateways Gateways
	// Endpoint is the server of the Cluster's endpoint, see EndpointURL. It is the original if none was stored. Empty
	// means unknown. Callers that have the Cluster set it.
	Endpoint string
}

// FromTunnel returns the decision that is recorded in a Tunnel, with the credentials of its proxy, or nil if it has
// none. It returns false if nothing must be written: nothing is recorded, or the Tunnel names credentials that are
// missing.
func FromTunnel(tunnel *v1alpha1.Tunnel, gateways Gateways, credentials *Credentials) (Decision, bool) {
	spec := tunnel.Spec.Kubeconfig
	if spec.Proxy != nil && (spec.Proxy.CredentialsSecret != "") != (credentials != nil) &&
		throughProxy(tunnel.Status.Kubeconfig.Mode) {
		return Decision{}, false
	}
	return fromRecord(tunnel, gateways, credentials)
}

// FromTunnelAndSecrets is FromTunnel without access to the credentials of the proxy: it uses the credentials that one
// of the Secrets contains for the same proxy, or none. Its result therefore discloses no secret to a client that sent
// these Secrets. Secrets may be nil.
func FromTunnelAndSecrets(
	tunnel *v1alpha1.Tunnel, gateways Gateways, cluster string, secrets ...*corev1.Secret,
) (Decision, bool) {
	proxy := ""
	switch spec := tunnel.Spec.Kubeconfig; {
	case spec.Mode.Tunnelled():
		proxy = tunnel.Status.Kubeconfig.ProxyURL
	case spec.Proxy != nil && spec.Proxy.CredentialsSecret != "":
		proxy = proxyURL(spec)
	}
	var credentials *Credentials
	for _, secret := range secrets {
		if credentials = credentialsIn(secret, cluster, proxy); credentials != nil {
			break
		}
	}
	return fromRecord(tunnel, gateways, credentials)
}

// credentialsIn returns the credentials in the proxy-url of a kubeconfig that uses a proxy, or nil.
func credentialsIn(secret *corev1.Secret, cluster, proxy string) *Credentials {
	if secret == nil {
		return nil
	}
	endpoint, err := Read(secret, cluster)
	if err != nil || !leadsBy(endpoint, proxy) {
		return nil
	}
	u, err := url.Parse(endpoint.ProxyURL)
	if err != nil || u.User == nil {
		return nil
	}
	password, _ := u.User.Password()
	return &Credentials{u.User.Username(), password}
}

// throughProxy reports whether a mode uses the user's own proxy.
func throughProxy(mode v1alpha1.KubeconfigMode) bool {
	switch mode {
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		return true
	}
	return false
}

func fromRecord(tunnel *v1alpha1.Tunnel, gateways Gateways, credentials *Credentials) (Decision, bool) {
	spec, s := tunnel.Spec.Kubeconfig, tunnel.Status.Kubeconfig
	d := Decision{
		Mode:     s.Mode,
		Hostname: tunnel.Status.Hostname,
		Gateways: gateways,
		Target:   Endpoint{s.Server, s.TLSServerName, s.ProxyURL},
	}
	switch s.Mode {
	case v1alpha1.KubeconfigModeSNI, v1alpha1.KubeconfigModeConnect:
		if s.Mode == v1alpha1.KubeconfigModeConnect {
			d.Target.TLSServerName = spec.TLSServerName // else it depends on what the provider wrote
		}
		return d, d.Hostname != ""
	case v1alpha1.KubeconfigModeAddress:
		return d, true
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		switch {
		case spec.Mode.Tunnelled():
			// The kubeconfig keeps the proxy until it leads through the tunnel, and the spec names the proxy no more.
			if s.ProxyCredentials && credentials == nil {
				return Decision{}, false
			}
		case spec.Mode != s.Mode || !ByProxy(Endpoint{ProxyURL: s.ProxyURL}, spec):
			// A record of another mode, or of another proxy, than the spec's does not state which credentials belong to
			// it. The credentials must not be sent to that proxy.
			return Decision{}, false
		default:
			d.Target.TLSServerName = spec.TLSServerName // else the provider's
		}
		d.Target.Server, d.Target.ProxyURL = "", withCredentials(s.ProxyURL, credentials)
		return d, d.Target.ProxyURL != ""
	}
	return Decision{}, false
}

// StatusOf returns the status for a choice. resolves states whether the tunnel hostname, or choice.Name, resolves to
// the gateways: then clients dial the name, else the gateways' own address with the name as SNI. In the modes with a
// proxy, the server is the provider's and unknown here.
func StatusOf(spec v1alpha1.KubeconfigSpec, choice Choice, gateways Gateways, resolves bool) v1alpha1.KubeconfigStatus {
	s := v1alpha1.KubeconfigStatus{Mode: choice.Mode, EndpointName: choice.EndpointName}
	switch choice.Mode {
	case v1alpha1.KubeconfigModeSNI:
		e := wayBySNI(choice.Name, gateways, resolves)
		s.Server, s.TLSServerName = e.Server, e.TLSServerName
	case v1alpha1.KubeconfigModeConnect:
		s.Server, s.ProxyURL = serverURL(model.Endpoint{Host: choice.Name, Port: connectPort}), connectURL(gateways.Connect)
		s.TLSServerName = spec.TLSServerName
	case v1alpha1.KubeconfigModeAddress:
		s.Server, s.TLSServerName = spec.Server, spec.TLSServerName
	default:
		s.ProxyURL, s.TLSServerName = proxyURL(spec), spec.TLSServerName
		s.ProxyCredentials = spec.Proxy != nil && spec.Proxy.CredentialsSecret != ""
	}
	return s
}

// EndpointTo returns the endpoint of a served tunnel in mode sni or connect, regardless of the mode of its kubeconfig.
// It is for copies. The original in the Cluster's own Secret contains the name in the certificate. EndpointTo returns
// false if the Tunnel is not served or for any other mode.
func EndpointTo(
	mode v1alpha1.KubeconfigMode, tunnel *v1alpha1.Tunnel, own *corev1.Secret, gateways Gateways,
) (Endpoint, bool) {
	spec, s := tunnel.Spec.Kubeconfig, tunnel.Status.Kubeconfig
	hostname := tunnel.Status.Hostname
	switch {
	case hostname == "":
		return Endpoint{}, false
	case mode == v1alpha1.KubeconfigModeSNI && s.Mode == mode:
		return Endpoint{Server: s.Server, TLSServerName: s.TLSServerName}, true
	case mode == v1alpha1.KubeconfigModeSNI:
		return wayBySNI(
			hostname, gateways, apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionHostnameResolves),
		), true
	case mode != v1alpha1.KubeconfigModeConnect:
		return Endpoint{}, false
	}
	e := Endpoint{
		Server:        serverURL(model.Endpoint{Host: hostname, Port: connectPort}),
		TLSServerName: spec.TLSServerName,
		ProxyURL:      connectURL(gateways.Connect),
	}
	if e.TLSServerName == "" {
		was, _ := kept(own)
		e.TLSServerName = verifiedName(was)
	}
	return e, true
}

// wayBySNI returns how clients connect to the gateways so that they send name as SNI.
func wayBySNI(name string, gateways Gateways, resolves bool) Endpoint {
	if resolves {
		return Endpoint{Server: serverURL(model.Endpoint{Host: name, Port: gateways.APIServer.Port})}
	}
	// client-go also sends tls-server-name as SNI, and the SNI is the route.
	return Endpoint{Server: serverURL(gateways.APIServer), TLSServerName: name}
}

// NameOf returns the name that the gateways route in mode sni for a recorded kubeconfig, or "" in other modes.
func NameOf(s v1alpha1.KubeconfigStatus) string {
	switch {
	case s.Mode != v1alpha1.KubeconfigModeSNI:
		return ""
	case s.TLSServerName != "":
		return s.TLSServerName
	}
	return Host(s.Server)
}

// ByProxy reports whether a way uses the proxy that a Tunnel names, with any credentials.
func ByProxy(endpoint Endpoint, spec v1alpha1.KubeconfigSpec) bool {
	return leadsBy(endpoint, proxyURL(spec))
}

// leadsBy reports whether a way uses a proxy, with any credentials; it returns false for no proxy.
func leadsBy(endpoint Endpoint, proxy string) bool {
	named := WithoutCredentials(proxy)
	return named != "" && WithoutCredentials(endpoint.ProxyURL) == named
}

// withCredentials adds credentials to a proxy-url, unless they are nil. It returns "" for an invalid proxy-url.
func withCredentials(proxy string, credentials *Credentials) string {
	u, err := url.Parse(proxy)
	if err != nil || u.Host == "" {
		return ""
	}
	if credentials != nil {
		u.User = url.UserPassword(credentials.Username, credentials.Password)
	}
	return u.String()
}
