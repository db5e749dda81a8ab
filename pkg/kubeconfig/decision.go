package kubeconfig

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Decision is how a kubeconfig has to lead, and how to know one that leads there already.
type Decision struct {
	Mode     v1alpha1.KubeconfigMode // never auto
	Way      Way                     // as far as it does not depend on what the provider wrote
	Hostname string                  // the tunnel hostname; empty where there is none
	Gateways Gateways
	// Endpoint is the server that the Cluster's endpoint gives, see EndpointURL: the original where nobody has kept it. Empty:
	// not known. Whoever knows the Cluster sets it.
	Endpoint string
}

// FromTunnel is the decision that is on record in a Tunnel, with the credentials of its proxy, nil where there are none. It
// is false if nothing is to be written: nothing is on record, or the credentials that the Tunnel names are missing.
func FromTunnel(tunnel *v1alpha1.Tunnel, gateways Gateways, credentials *Credentials) (Decision, bool) {
	spec := tunnel.Spec.Kubeconfig
	if spec.Proxy != nil && (spec.Proxy.CredentialsSecret != "") != (credentials != nil) && throughProxy(tunnel.Status.Kubeconfig.Mode) {
		return Decision{}, false
	}
	return fromRecord(tunnel, gateways, credentials)
}

// FromTunnelAndSecrets is FromTunnel without access to the credentials of the proxy: it keeps those that one of the Secrets holds for the
// same proxy, and has none where no Secret does. So its result discloses no secret to a party that has sent these Secrets.
func FromTunnelAndSecrets(tunnel *v1alpha1.Tunnel, gateways Gateways, cluster string, secrets ...*corev1.Secret) (Decision, bool) {
	var credentials *Credentials
	if proxy := tunnel.Spec.Kubeconfig.Proxy; proxy != nil && proxy.CredentialsSecret != "" {
		for _, secret := range secrets {
			if credentials = credentialsIn(secret, cluster, tunnel.Spec.Kubeconfig); credentials != nil {
				break
			}
		}
	}
	return fromRecord(tunnel, gateways, credentials)
}

// credentialsIn are the credentials in the proxy-url of a kubeconfig that leads by the proxy of a Tunnel; nil: there are none.
func credentialsIn(secret *corev1.Secret, cluster string, spec v1alpha1.KubeconfigSpec) *Credentials {
	way, err := Read(secret, cluster)
	if err != nil || !ByProxy(way, spec) {
		return nil
	}
	u, err := url.Parse(way.ProxyURL)
	if err != nil || u.User == nil {
		return nil
	}
	password, _ := u.User.Password()
	return &Credentials{u.User.Username(), password}
}

// throughProxy says whether a mode leads by a proxy of the user's own.
func throughProxy(mode v1alpha1.KubeconfigMode) bool {
	switch mode {
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		return true
	}
	return false
}

func fromRecord(tunnel *v1alpha1.Tunnel, gateways Gateways, credentials *Credentials) (Decision, bool) {
	spec, s := tunnel.Spec.Kubeconfig, tunnel.Status.Kubeconfig
	d := Decision{Mode: s.Mode, Hostname: tunnel.Status.Hostname, Gateways: gateways, Way: Way{s.Server, s.TLSServerName, s.ProxyURL}}
	switch s.Mode {
	case v1alpha1.KubeconfigModeSNI, v1alpha1.KubeconfigModeConnect:
		if s.Mode == v1alpha1.KubeconfigModeConnect {
			d.Way.TLSServerName = spec.TLSServerName // else it depends on what the provider wrote
		}
		return d, d.Hostname != ""
	case v1alpha1.KubeconfigModeAddress:
		return d, true
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		// What is on record of another mode than the spec's says nothing about which credentials belong to it.
		// Nor does that of another proxy, which is not to be sent the credentials of this one.
		if spec.Mode != s.Mode || !ByProxy(Way{ProxyURL: s.ProxyURL}, spec) {
			return Decision{}, false
		}
		d.Way.Server, d.Way.TLSServerName = "", spec.TLSServerName // else those of the provider
		d.Way.ProxyURL = withCredentials(s.ProxyURL, credentials)
		return d, d.Way.ProxyURL != ""
	}
	return Decision{}, false
}

// Record is what a decision for a mode and a name puts on record. resolves says whether the tunnel hostname, or whatever name
// is given, leads clients to the gateways: then they dial it, and else the gateways' own address with the name as SNI. The
// server of the modes with a proxy is the provider's, and not known here.
func Record(spec v1alpha1.KubeconfigSpec, choice Choice, gateways Gateways, resolves bool) v1alpha1.KubeconfigStatus {
	s := v1alpha1.KubeconfigStatus{Mode: choice.Mode, EndpointName: choice.EndpointName}
	switch choice.Mode {
	case v1alpha1.KubeconfigModeSNI:
		w := wayBySNI(choice.Name, gateways, resolves)
		s.Server, s.TLSServerName = w.Server, w.TLSServerName
	case v1alpha1.KubeconfigModeConnect:
		s.Server, s.ProxyURL = serverURL(model.Endpoint{Host: choice.Name, Port: connectPort}), connectURL(gateways.Connect)
		s.TLSServerName = spec.TLSServerName
	case v1alpha1.KubeconfigModeAddress:
		s.Server, s.TLSServerName = spec.Server, spec.TLSServerName
	default:
		s.ProxyURL, s.TLSServerName = proxyURL(spec), spec.TLSServerName
	}
	return s
}

// WayTo is the way of mode sni or connect to a tunnel that is served, whatever the mode of its kubeconfig: for copies. What the
// provider wrote into the Cluster's own Secret says which name its certificate has. It is false if the Tunnel is not served, or
// the mode is another.
func WayTo(mode v1alpha1.KubeconfigMode, tunnel *v1alpha1.Tunnel, own *corev1.Secret, gateways Gateways) (Way, bool) {
	spec, s := tunnel.Spec.Kubeconfig, tunnel.Status.Kubeconfig
	hostname := tunnel.Status.Hostname
	switch {
	case hostname == "":
		return Way{}, false
	case mode == v1alpha1.KubeconfigModeSNI && s.Mode == mode:
		return Way{Server: s.Server, TLSServerName: s.TLSServerName}, true
	case mode == v1alpha1.KubeconfigModeSNI:
		return wayBySNI(hostname, gateways, apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionHostnameResolves)), true
	case mode != v1alpha1.KubeconfigModeConnect:
		return Way{}, false
	}
	w := Way{Server: serverURL(model.Endpoint{Host: hostname, Port: connectPort}), TLSServerName: spec.TLSServerName, ProxyURL: connectURL(gateways.Connect)}
	if w.TLSServerName == "" {
		was, _ := kept(own)
		w.TLSServerName = verifiedName(was)
	}
	return w, true
}

// wayBySNI is how clients dial the gateways so that they send a name.
func wayBySNI(name string, gateways Gateways, resolves bool) Way {
	if resolves {
		return Way{Server: serverURL(model.Endpoint{Host: name, Port: gateways.APIServer.Port})}
	}
	// tls-server-name is also the SNI that client-go sends, and the SNI is the route.
	return Way{Server: serverURL(gateways.APIServer), TLSServerName: name}
}

// NameOf is the name by which what is on record leads through the gateways in mode sni; empty in other modes.
func NameOf(s v1alpha1.KubeconfigStatus) string {
	switch {
	case s.Mode != v1alpha1.KubeconfigModeSNI:
		return ""
	case s.TLSServerName != "":
		return s.TLSServerName
	}
	return Host(s.Server)
}

// ByProxy says whether a way leads by the proxy that a Tunnel names, with whatever credentials.
func ByProxy(way Way, spec v1alpha1.KubeconfigSpec) bool {
	named := WithoutCredentials(proxyURL(spec))
	return named != "" && WithoutCredentials(way.ProxyURL) == named
}

// withCredentials puts credentials into a proxy-url; nil: none.
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
