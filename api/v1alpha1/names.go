package v1alpha1

// Names on objects of others.
const (
	// TunnelLabel on a Cluster decides whether it gets a tunnel: TunnelEnabled or TunnelDisabled. Without it the
	// controller's --all-clusters flag decides.
	TunnelLabel    = "fairlead.dev/tunnel"
	TunnelEnabled  = "enabled"
	TunnelDisabled = "disabled"

	// OriginalServerAnnotation on a kubeconfig Secret keeps the server that the control-plane provider wrote. Its
	// presence says that the kubeconfig in the Secret is Fairlead's.
	OriginalServerAnnotation = "fairlead.dev/original-server"
	// WrittenServerAnnotation keeps the server that Fairlead wrote, so that it is known as Fairlead's even after the
	// installation has got other addresses.
	WrittenServerAnnotation = "fairlead.dev/written-server"
	// OriginalTLSServerNameAnnotation keeps the provider's tls-server-name, where it wrote one.
	OriginalTLSServerNameAnnotation = "fairlead.dev/original-tls-server-name"
	// OriginalProxyURLKey is the Secret key that keeps the provider's proxy-url, where it wrote one. It is no
	// annotation, because a proxy-url may hold a password.
	OriginalProxyURLKey = "fairlead-original-proxy-url"
)

// EdgesAnnotation on a Cluster says where its edges run. With EdgesOnControlPlane each edge dials the apiserver of its own
// machine first, 127.0.0.1, and falls back to the Cluster's endpoint.
const (
	EdgesAnnotation     = "fairlead.dev/edges"
	EdgesOnControlPlane = "control-plane"
)

// PreparedAnnotation on a Tunnel says that it waits for its Cluster, which is to be moved here: its edges may enrol before
// the Cluster is there. Its value is the time (RFC 3339) after which nobody waits any more.
const PreparedAnnotation = "fairlead.dev/prepared-until"

// AcceptKubeconfigsAnnotation on a Namespace lists the namespaces, divided by commas, whose Tunnels may write copies of
// kubeconfigs into it; * stands for all of them.
const AcceptKubeconfigsAnnotation = "fairlead.dev/accept-kubeconfigs-from"

// CopyLabel marks the Secrets with copies of kubeconfigs. Its value is the id of the Tunnel that they belong to.
const CopyLabel = "fairlead.dev/kubeconfig-of"

// BootReportSecretSuffix added to the name of a Cluster is the name of the Secret with which its machines report how they
// boot. What is in it can report for its Cluster and do nothing else.
const BootReportSecretSuffix = "-boot-report"

// BootReportFileKey is its key with the one file that edge-agent report needs.
const BootReportFileKey = "report.yaml"

// BootReportsAnnotation on a Cluster, with the value BootReportsEnabled, says that all of its machines are made to report how
// they boot: one that never does then has a condition that says so.
const (
	BootReportsAnnotation = "fairlead.dev/boot-reports"
	BootReportsEnabled    = "enabled"
)

// TunnelFinalizer keeps a Tunnel that is being deleted until its Cluster is gone or its kubeconfig is restored.
const TunnelFinalizer = "fairlead.dev/tunnel"

// BootstrapSecretSuffix added to the name of a Cluster is the name of the Secret with which its edges enrol.
const BootstrapSecretSuffix = "-edge-bootstrap"

// BootstrapLabel marks the bootstrap Secrets of edges, with the value BootstrapEdge, and those for boot reports, with the value
// BootstrapReport. They don't have Cluster API's own label, because each of its managers would keep them in memory.
const (
	BootstrapLabel  = "fairlead.dev/bootstrap"
	BootstrapEdge   = "edge"
	BootstrapReport = "boot-report"
)

// Keys of a bootstrap Secret.
const (
	// BootstrapFileKey is the one file that edge-agent needs.
	BootstrapFileKey = "bootstrap.yaml"
	// BootstrapCommandKey is a shell command that writes that file and runs edge-agent.
	BootstrapCommandKey = "command"
	// BootstrapTokenKey, BootstrapCAKey, BootstrapGatewayKey and BootstrapDomainKey are the same values one by one.
	BootstrapTokenKey   = "token"
	BootstrapCAKey      = "ca.crt"
	BootstrapGatewayKey = "gateway"
	BootstrapDomainKey  = "tunnel-domain"
)

// Objects in the namespace in which Fairlead is installed.
const (
	// CASecretName is the kubernetes.io/tls Secret of the installation's CA. Only the controller may read it.
	CASecretName = "fairlead-ca"
	// InstallationConfigMapName is the ConfigMap with what is public about an installation.
	InstallationConfigMapName = "fairlead-installation"
	// RolloutConfigMapName is the ConfigMap with the record of rollouts: which profile all nodes run, and which comes next.
	RolloutConfigMapName = "fairlead-rollout"
	// TrustBundleKey of that ConfigMap holds the PEM certificates of the CAs to accept.
	TrustBundleKey = "ca.crt"
	// GatewayTokenHashKey of that ConfigMap holds the hash of the gateway token, as enrol.HashToken writes it.
	GatewayTokenHashKey = "gateway-token-sha256"
	// CAStateSecretName is the Secret with the keys of the CAs that sign now. Only the controller may read it. What is in
	// CASecretName comes into use by a rotation.
	CAStateSecretName = "fairlead-ca-state"
	// CARotationKey of the installation's ConfigMap holds a CARotation, as JSON.
	CARotationKey = "ca-rotation.json"
	// CAMadeAnnotation on CASecretName is the serial number, in hexadecimal, of the CA that the controller made and put there.
	// With another CA in the Secret, or without the annotation, the CA was brought.
	CAMadeAnnotation = "fairlead.dev/ca-made"
	// RotateCAAnnotation on that ConfigMap asks for a new CA: its value is the time (RFC 3339) of the request. The
	// controller removes it when the rotation has begun.
	RotateCAAnnotation = "fairlead.dev/rotate-ca"
	// EndedTunnelsConfigMapName is the ConfigMap with the ids of tunnels that have ended. Each key is an id, each value the
	// time (RFC 3339) until which certificates of its edges may be valid. An entry stays for 90 days longer.
	EndedTunnelsConfigMapName = "fairlead-ended-tunnels"
	// WebhookSecretName is the kubernetes.io/tls Secret with which the replicas of the controller serve the webhook. Its key ca.crt
	// holds the CAs that are in WebhookConfigurationName too.
	WebhookSecretName = "fairlead-webhook"
	// GatewaySecretName is the Secret with which gateways enrol. It has the keys BootstrapTokenKey and BootstrapCAKey.
	GatewaySecretName = "fairlead-gateway-bootstrap"
)

// WebhookConfigurationName is the MutatingWebhookConfiguration whose CAs the controller keeps.
const WebhookConfigurationName = "fairlead-kubeconfigs"

// Signer names of CertificateSigningRequests: one for each profile of certificate.
const (
	SignerEdge    = "fairlead.dev/edge"
	SignerGateway = "fairlead.dev/gateway"
	SignerControl = "fairlead.dev/control"
)

// Annotations with which the xds-server says, in a CertificateSigningRequest, for whom it has checked a credential.
const (
	// RequestTunnelAnnotation is namespace/name of the Tunnel whose edge asks.
	RequestTunnelAnnotation = "fairlead.dev/tunnel"
	// RequestTunnelIDAnnotation is the Tunnel's spec.id at the time of the check; another id means another Tunnel.
	RequestTunnelIDAnnotation = "fairlead.dev/tunnel-id"
	// RequestNodeAnnotation is the node name: of a new edge, chosen by the xds-server; else of the one that renews.
	RequestNodeAnnotation = "fairlead.dev/node"
	// RequestTokenAnnotation is the hash of the token that was shown. It is absent when a leaf is renewed by its key.
	RequestTokenAnnotation = "fairlead.dev/token-sha256"
	// RequestHostAnnotation is what the machine calls itself: a label for people and nothing else.
	RequestHostAnnotation = "fairlead.dev/host"
)
