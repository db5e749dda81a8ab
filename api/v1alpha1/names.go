package v1alpha1

// Labels, annotations and keys that Fairlead reads from or writes to objects that it does not own.
const (
	// TunnelLabel on a Cluster decides whether it gets a tunnel: TunnelEnabled or TunnelDisabled. Without it the
	// controller's --all-clusters flag decides.
	TunnelLabel    = "fairlead.dev/tunnel"
	TunnelEnabled  = "enabled"
	TunnelDisabled = "disabled"

	// OriginalServerAnnotation on a kubeconfig Secret stores the server that the control-plane provider wrote. If it
	// exists, Fairlead wrote the kubeconfig in the Secret.
	OriginalServerAnnotation = "fairlead.dev/original-server"
	// WrittenServerAnnotation stores the server that Fairlead wrote, so that Fairlead recognises it even after the
	// addresses of the installation have changed.
	WrittenServerAnnotation = "fairlead.dev/written-server"
	// OriginalTLSServerNameAnnotation stores the provider's tls-server-name, if it wrote one.
	OriginalTLSServerNameAnnotation = "fairlead.dev/original-tls-server-name"
	// OriginalProxyURLKey is the Secret key that stores the provider's proxy-url, if it wrote one. It is not an
	// annotation, because a proxy-url may contain a password.
	OriginalProxyURLKey = "fairlead-original-proxy-url"
)

// EdgesAnnotation on a Cluster declares where its edges run. With EdgesOnControlPlane each edge first connects to the
// apiserver on its own machine, 127.0.0.1, and falls back to the Cluster's endpoint.
const (
	EdgesAnnotation     = "fairlead.dev/edges"
	EdgesOnControlPlane = "control-plane"
)

// PreparedAnnotation on a Tunnel declares that a Cluster will be moved to this management cluster: the Tunnel's edges
// may enrol before the Cluster exists. Its value is the time (RFC 3339) at which this permission ends.
const PreparedAnnotation = "fairlead.dev/prepared-until"

// AcceptKubeconfigsAnnotation on a Namespace lists the namespaces, separated by commas, whose Tunnels may write copies
// of kubeconfigs into it; * allows all namespaces.
const AcceptKubeconfigsAnnotation = "fairlead.dev/accept-kubeconfigs-from"

// CopyLabel marks Secrets that contain copies of kubeconfigs. Its value is the id of their Tunnel.
const CopyLabel = "fairlead.dev/kubeconfig-of"

// BootReportSecretSuffix is appended to the name of a Cluster to name the Secret with which its machines send boot
// reports. Its credentials permit boot reports for that Cluster and nothing else.
const BootReportSecretSuffix = "-boot-report"

// BootReportFileKey is the key of that Secret with the only file that edge-agent report requires.
const BootReportFileKey = "report.yaml"

// BootReportsAnnotation on a Cluster, with the value BootReportsEnabled, declares that all of its machines send boot
// reports. A machine that does not send one then gets a condition that reports this.
const (
	BootReportsAnnotation = "fairlead.dev/boot-reports"
	BootReportsEnabled    = "enabled"
)

// TunnelFinalizer keeps a Tunnel that is being deleted until its Cluster is deleted or its kubeconfig is restored.
const TunnelFinalizer = "fairlead.dev/tunnel"

// BootstrapSecretSuffix is appended to the name of a Cluster to name the Secret with which its edges enrol.
const BootstrapSecretSuffix = "-edge-bootstrap"

// EdgeResourcesLabel on a Cluster, with the name of the Cluster as its value, requests a Secret for a
// ClusterResourceSet of Cluster API, which brings the bootstrap file to the workload cluster. A ClusterResourceSet for
// this Cluster alone selects it by the same label.
const EdgeResourcesLabel = "fairlead.dev/edge-resources"

// EdgeResourcesSecretSuffix is appended to the name of a Cluster to name that Secret.
const EdgeResourcesSecretSuffix = "-edge-resources"

// EdgeResourcesKey is the only key of that Secret: complete objects in YAML.
const EdgeResourcesKey = "edge.yaml"

// BootstrapLabel marks the Secrets with which edges enrol, with the value BootstrapEdge, the Secrets for
// ClusterResourceSets, with the value BootstrapResources, and the Secrets for boot reports, with the value
// BootstrapReport. These Secrets do not have Cluster API's own label, because each of its
// managers would cache them.
const (
	BootstrapLabel     = "fairlead.dev/bootstrap"
	BootstrapEdge      = "edge"
	BootstrapResources = "edge-resources"
	BootstrapReport    = "boot-report"
)

// Keys of a bootstrap Secret.
const (
	// BootstrapFileKey is the only file that edge-agent requires.
	BootstrapFileKey = "bootstrap.yaml"
	// BootstrapCommandKey is a shell command that writes that file and runs edge-agent.
	BootstrapCommandKey = "command"
	// BootstrapTokenKey, BootstrapCAKey, BootstrapGatewayKey and BootstrapDomainKey contain the same values
	// separately.
	BootstrapTokenKey   = "token"
	BootstrapCAKey      = "ca.crt"
	BootstrapGatewayKey = "gateway"
	BootstrapDomainKey  = "tunnel-domain"
)

// Objects in Fairlead's namespace.
const (
	// CASecretName is the kubernetes.io/tls Secret of the installation's CA. Only the controller may read it.
	CASecretName = "fairlead-ca"
	// InstallationConfigMapName is the ConfigMap with the public data of an installation.
	InstallationConfigMapName = "fairlead-installation"
	// SettingsConfigMapName is the ConfigMap of the manifests and the chart with the settings of an installation.
	SettingsConfigMapName = "fairlead-settings"
	// RolloutConfigMapName is the ConfigMap with the record of rollouts: which profile all nodes run, and which comes
	// next.
	RolloutConfigMapName = "fairlead-rollout"
	// TrustBundleKey of the installation's ConfigMap contains the PEM certificates of the CAs to trust.
	TrustBundleKey = "ca.crt"
	// GatewayTokenHashKey of it contains the hash of the gateway token, as enrol.HashToken computes it.
	GatewayTokenHashKey = "gateway-token-sha256"
	// CAStateSecretName is the Secret with the private keys of the CAs that currently sign. Only the controller may
	// read it. The CA in CASecretName comes into use by a rotation.
	CAStateSecretName = "fairlead-ca-state"
	// CARotationKey of the installation's ConfigMap contains a CARotation, as JSON.
	CARotationKey = "ca-rotation.json"
	// CAMadeAnnotation on CASecretName is the hexadecimal serial number of the CA that the controller created and
	// stored there. If the Secret contains another CA, or lacks the annotation, the user supplied the CA.
	CAMadeAnnotation = "fairlead.dev/ca-made"
	// RotateCAAnnotation on that ConfigMap requests a new CA. Its value is the time (RFC 3339) of the request. The
	// controller removes it when the rotation has begun.
	RotateCAAnnotation = "fairlead.dev/rotate-ca"
	// EndedTunnelsConfigMapName is the ConfigMap with the ids of tunnels that have ended. Each key is an id; its value
	// is the time (RFC 3339) until which certificates of its edges may be valid. An entry is kept for 90 days after
	// that.
	EndedTunnelsConfigMapName = "fairlead-ended-tunnels"
	// WebhookSecretName is the kubernetes.io/tls Secret with which the replicas of the controller serve the webhook.
	// Its key ca.crt contains the same CAs as WebhookConfigurationName.
	WebhookSecretName = "fairlead-webhook"
	// GatewaySecretName is the Secret with which gateways enrol. It has the keys BootstrapTokenKey and BootstrapCAKey.
	GatewaySecretName = "fairlead-gateway-bootstrap"
)

// WebhookConfigurationName is the MutatingWebhookConfiguration whose CA bundles the controller maintains.
const WebhookConfigurationName = "fairlead-kubeconfigs"

// Suffixes of the names of Tunnels that are not the Tunnel of a Cluster.
const (
	// NetworkTunnelSuffix is appended to the name of a RemoteNetwork to name its Tunnel.
	NetworkTunnelSuffix = ".network"
	// EgressTunnelSuffix is appended to the name of a Cluster to name the Tunnel with which its apiservers enrol.
	EgressTunnelSuffix = ".egress"
)

// Signer names of CertificateSigningRequests: one for each certificate profile.
const (
	SignerEdge    = "fairlead.dev/edge"
	SignerEgress  = "fairlead.dev/egress"
	SignerGateway = "fairlead.dev/gateway"
	SignerControl = "fairlead.dev/control"
)

// Annotations of a CertificateSigningRequest that state for which subject the xds-server has checked a credential.
const (
	// RequestTunnelAnnotation is the namespace/name of the Tunnel of the requesting edge.
	RequestTunnelAnnotation = "fairlead.dev/tunnel"
	// RequestTunnelIDAnnotation is the Tunnel's spec.id at the time of the check. If the id differs later, it is
	// another Tunnel.
	RequestTunnelIDAnnotation = "fairlead.dev/tunnel-id"
	// RequestNodeAnnotation is the node name: the xds-server chooses it for a new edge; a renewal has that of the
	// renewed certificate.
	RequestNodeAnnotation = "fairlead.dev/node"
	// RequestTokenAnnotation is the hash of the presented token. It is absent if the request renews a leaf by proof of
	// its key.
	RequestTokenAnnotation = "fairlead.dev/token-sha256"
	// RequestPodTokenAnnotation is the presented ServiceAccount token of a Pod of the workload cluster. The controller
	// verifies it again. It is valid for this tunnel only, for minutes, and for one key.
	RequestPodTokenAnnotation = "fairlead.dev/pod-token"
	// RequestHostAnnotation is the machine's own name. It is only a label for people.
	RequestHostAnnotation = "fairlead.dev/host"
)

// PublicServiceName is the name of the Service at which edges reach the gateways.
const PublicServiceName = "gateway-public"
