package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeconfigMode is how clients reach a workload cluster.
// +kubebuilder:validation:Enum=auto;sni;connect;http-proxy;https-proxy;socks5;address
type KubeconfigMode string

const (
	// KubeconfigModeAuto chooses sni or connect by the names in the serving certificate that the edges report.
	KubeconfigModeAuto KubeconfigMode = "auto"
	// KubeconfigModeSNI dials the gateway's apiserver listener, which routes by SNI. The serving certificate of the
	// workload cluster must have the tunnel hostname or one of the extra names.
	KubeconfigModeSNI KubeconfigMode = "sni"
	// KubeconfigModeConnect uses the gateway as an HTTP proxy, which routes by the authority of CONNECT. It works with
	// every serving certificate.
	KubeconfigModeConnect KubeconfigMode = "connect"

	// The modes below use a network of the user's own: there is no edge, and the controller creates no tunnel.

	// KubeconfigModeHTTPProxy uses a proxy that accepts CONNECT in plaintext.
	KubeconfigModeHTTPProxy KubeconfigMode = "http-proxy"
	// KubeconfigModeHTTPSProxy uses a proxy that accepts CONNECT over TLS. client-go verifies the proxy with the CA of
	// the workload cluster, so the proxy must have a certificate that this CA has signed.
	KubeconfigModeHTTPSProxy KubeconfigMode = "https-proxy"
	// KubeconfigModeSOCKS5 uses a SOCKS5 proxy (RFC 1928).
	KubeconfigModeSOCKS5 KubeconfigMode = "socks5"
	// KubeconfigModeAddress connects to another address: a TCP tunnel or a load balancer.
	KubeconfigModeAddress KubeconfigMode = "address"
)

// Tunnelled reports whether a mode leads through the gateways. It is true for auto, sni, connect and the empty mode,
// which stands for auto.
func (m KubeconfigMode) Tunnelled() bool {
	switch m {
	case "", KubeconfigModeAuto, KubeconfigModeSNI, KubeconfigModeConnect:
		return true
	}
	return false
}

// KubeconfigSwitch is when a kubeconfig starts to lead through its tunnel.
// +kubebuilder:validation:Enum=auto;when-ready;immediate
type KubeconfigSwitch string

const (
	// KubeconfigSwitchAuto is when-ready for a Cluster whose control plane is initialized when its tunnel is created,
	// because clients may use its original kubeconfig, and immediate for every other Cluster.
	KubeconfigSwitchAuto KubeconfigSwitch = "auto"
	// KubeconfigSwitchWhenReady keeps the original kubeconfig until the conditions TunnelReady and APIServerReachable
	// are True for the first time.
	KubeconfigSwitchWhenReady KubeconfigSwitch = "when-ready"
	// KubeconfigSwitchImmediate does not wait for a reverse tunnel.
	KubeconfigSwitchImmediate KubeconfigSwitch = "immediate"
)

// KubeconfigSpec defines how the Cluster's kubeconfig Secret is written.
//
// +kubebuilder:validation:XValidation:rule="has(self.server) == (has(self.mode) && self.mode == 'address')",message="server goes with mode: address and with no other: give both, or leave both out"
// +kubebuilder:validation:XValidation:rule="has(self.proxy) == (has(self.mode) && self.mode in ['http-proxy', 'https-proxy', 'socks5'])",message="proxy goes with the modes http-proxy, https-proxy and socks5 and with no other: give mode and proxy, or leave both out"
type KubeconfigSpec struct {
	// mode is how clients reach the workload cluster. Defaults to auto.
	// +optional
	Mode KubeconfigMode `json:"mode,omitempty"`

	// switch is when the kubeconfig starts to lead through the tunnel in the modes auto, sni and connect. It applies
	// once: afterwards the kubeconfig keeps leading through the tunnel. Defaults to auto.
	// +optional
	Switch KubeconfigSwitch `json:"switch,omitempty"`

	// tlsServerName is the name in the serving certificate that clients verify. Mode sni ignores it, because there the
	// name is also the route. The default depends on the mode. In mode connect it is the host of the original server
	// if that is a DNS name, else "kubernetes", which every kubeadm certificate contains. In mode address it is the
	// host of the server. In the modes with a proxy it is the name that the provider's kubeconfig verifies.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)$')",message="must be a DNS name or an IP address that is in the serving certificate, without a port; leave it out for the default"
	TLSServerName string `json:"tlsServerName,omitempty"`

	// server is the URL of mode address: https://host:port.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	// +kubebuilder:validation:XValidation:rule="self.matches('^https://([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\\\\[[0-9A-Fa-f:.]+\\\\])(:[0-9]{1,5})?$')",message="must be https://host:port and nothing after it: no path, no user, no password"
	Server string `json:"server,omitempty"`

	// proxy is the proxy of the modes http-proxy, https-proxy and socks5.
	// +optional
	Proxy *ProxySpec `json:"proxy,omitempty"`

	// copies are further kubeconfigs for people and tools. Each is written to its own Secret, under the key "value".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.name == b.name && (has(a.__namespace__) ? a.__namespace__ : '') == (has(b.__namespace__) ? b.__namespace__ : '')))",message="has two copies with one name and namespace: give one of them another name"
	Copies []KubeconfigCopy `json:"copies,omitempty"`
}

// ProxySpec is a proxy that the user operates.
type ProxySpec struct {
	// address is the host:port of the proxy, as seen from the management cluster.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\\\\[[0-9A-Fa-f:.]+\\\\]):[0-9]{1,5}$')",message="must be host:port: the mode sets the kind of proxy, and credentials go into a Secret that credentialsSecret names"
	Address string `json:"address"`

	// credentialsSecret is the name of a Secret of type kubernetes.io/basic-auth in the namespace of the Tunnel.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="must be the name of a Secret of type kubernetes.io/basic-auth in the namespace of the Tunnel, without the namespace in front"
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// KubeconfigCopy is one further kubeconfig.
//
// +kubebuilder:validation:XValidation:rule="has(self.clientCertificate) != has(self.exec)",message="a copy needs either clientCertificate or exec, and not both: they define its user"
type KubeconfigCopy struct {
	// name is the name of the Secret.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="must be the name of a Secret: lower-case letters, digits, - and .; the namespace has a field of its own"
	Name string `json:"name"`

	// namespace is the namespace of the Secret. Defaults to the Tunnel's namespace. Any other namespace must accept
	// kubeconfigs from the Tunnel's namespace by its annotation fairlead.dev/accept-kubeconfigs-from.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",message="must be the name of a namespace; leave it out for that of the Tunnel"
	Namespace string `json:"namespace,omitempty"`

	// mode is sni or connect. Defaults to the mode of the Cluster's own kubeconfig.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self in ['sni', 'connect']",message="must be sni or connect; leave it out for the mode of the Cluster's own kubeconfig"
	Mode KubeconfigMode `json:"mode,omitempty"`

	// clientCertificate authenticates the user of the kubeconfig by a certificate of the workload cluster's CA.
	// +optional
	ClientCertificate *ClientCertificateAudience `json:"clientCertificate,omitempty"`

	// exec authenticates the user of the kubeconfig by a credential plugin.
	// +optional
	Exec *ExecAudience `json:"exec,omitempty"`
}

// ClientCertificateAudience is a user with a client certificate.
type ClientCertificateAudience struct {
	// commonName is the name of the user.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.size() >= 1 && self.size() <= 64",message="must be 1 to 64 characters, the limit of a certificate: give the user a shorter name"
	CommonName string `json:"commonName"`

	// groups are the groups of the user.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Groups []string `json:"groups,omitempty"`

	// expirationSeconds is the validity of the certificate in seconds. Defaults to 30 days. The certificate is
	// replaced after two thirds of it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 600 && self <= 31536000",message="must be between 600 (ten minutes) and 31536000 (a year) seconds; leave it out for 30 days"
	ExpirationSeconds int32 `json:"expirationSeconds,omitempty"`
}

// ExecAudience is a client-go credential plugin: client.authentication.k8s.io/v1.
type ExecAudience struct {
	// command is the program to run.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Command string `json:"command"`
	// args are the arguments of the program.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Args []string `json:"args,omitempty"`
	// env is added to the environment of the program.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []ExecEnv `json:"env,omitempty"`
	// installHint is shown to users if the program is not installed.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	InstallHint string `json:"installHint,omitempty"`
}

// ExecEnv is one environment variable.
type ExecEnv struct {
	// name of the variable.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// value of the variable.
	Value string `json:"value"`
}

// KubeconfigStatus is how a kubeconfig Secret leads to a workload cluster. The webhook writes these values into every
// new version of the Secret.
type KubeconfigStatus struct {
	// mode is the mode in use. It is never auto.
	// +optional
	Mode KubeconfigMode `json:"mode,omitempty"`
	// endpointName is a DNS name of the workload cluster in its serving certificate. Mode auto serves it as a further
	// name of the tunnel.
	// +optional
	EndpointName string `json:"endpointName,omitempty"`
	// server is the server that clients connect to.
	// +optional
	Server string `json:"server,omitempty"`
	// tlsServerName is the name that clients verify, if it is not the server's.
	// +optional
	TLSServerName string `json:"tlsServerName,omitempty"`
	// proxyURL is the proxy that clients use, without credentials.
	// +optional
	ProxyURL string `json:"proxyURL,omitempty"`
	// proxyCredentials reports whether the proxy needs credentials. Only the Secret contains them.
	// +optional
	ProxyCredentials bool `json:"proxyCredentials,omitempty"`
	// changedAt is when the endpoint of the kubeconfig last changed.
	// +optional
	ChangedAt *metav1.Time `json:"changedAt,omitempty"`
	// previousServer is the previous server, as long as managers of Cluster API may still be connected to it.
	// +optional
	PreviousServer string `json:"previousServer,omitempty"`
	// previousProxyURL is the previous proxy, without credentials.
	// +optional
	PreviousProxyURL string `json:"previousProxyURL,omitempty"`
	// copies are the further kubeconfigs.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	Copies []KubeconfigCopyStatus `json:"copies,omitempty"`
}

// KubeconfigCopyStatus is one further kubeconfig.
type KubeconfigCopyStatus struct {
	// namespace is the namespace of the Secret.
	Namespace string `json:"namespace"`
	// name is the name of the Secret.
	Name string `json:"name"`
	// certificateNotAfter is when the client certificate expires, if the copy has one.
	// +optional
	CertificateNotAfter *metav1.Time `json:"certificateNotAfter,omitempty"`
	// error is why the Secret is not as specified. Empty if it is.
	// +optional
	Error string `json:"error,omitempty"`
}
