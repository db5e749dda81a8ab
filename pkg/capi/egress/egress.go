// Package egress writes what the apiservers of a Cluster need to reach its RemoteNetworks: the configuration of their
// egress, their flags, and the container beside them that enrols for them. Input: the names of the Cluster and of an
// image. Output: YAML to paste into the object of a control-plane provider. Its functions are pure. The package does
// not know the management cluster, and writes no token: the output refers to the bootstrap Secret.
package egress

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Paths in the containers of an apiserver and of its sidecar.
const (
	// Socket is the default of --egress-socket of edge-agent.
	Socket     = "/run/fairlead/egress.sock"
	socketDir  = "/run/fairlead"
	configDir  = "/etc/kubernetes/fairlead-egress"
	configFile = "egress.yaml"
	stateDir   = "/var/lib/fairlead"
	secretDir  = "/etc/fairlead"
)

// Names of the volumes. Kamaji removes volumes of other names when its konnectivity addon ends.
const (
	socketVolume = "fairlead-egress-socket"
	configVolume = "fairlead-egress-config"
	stateVolume  = "fairlead-egress-state"
	secretVolume = "fairlead-egress-bootstrap"
)

const (
	// sidecarName is the name of the container.
	sidecarName = "fairlead-egress"
	// user is the user of our images.
	user = 65532
	// healthPort is that of the sidecar. It differs from the edge's, which may run on the same machine.
	healthPort = 8082
)

// addressTypes are the addresses of Nodes that an apiserver dials. A host name first, the default, has no network.
var addressTypes = []string{"InternalIP", "ExternalIP", "Hostname"}

// Params are the values of one Cluster.
type Params struct {
	Namespace, Cluster string
	Image              string // of edge-agent and Envoy
	// Endpoints makes apiservers dial the endpoints of Services of webhooks and aggregated APIs, and not their
	// ClusterIPs. It is required unless a network contains the service CIDR.
	Endpoints bool
}

// Validate returns an error for values that do not fit into the output.
func (p Params) Validate() error {
	if errs := validation.IsDNS1123Subdomain(p.SecretName()); len(errs) > 0 {
		return fmt.Errorf("checking name of the Cluster: %s", errs[0])
	}
	if p.Image == "" || strings.ContainsFunc(p.Image, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("checking image: it is empty, or has spaces or control characters")
	}
	return nil
}

// SecretName returns the name of the bootstrap Secret of the Cluster's apiservers.
func (p Params) SecretName() string {
	return p.Cluster + v1alpha1.EgressTunnelSuffix + v1alpha1.BootstrapSecretSuffix
}

// configMapName returns the name of the ConfigMap with the selector configuration, for hosted control planes.
func (p Params) configMapName() string { return p.Cluster + "-fairlead-egress" }

// The types of apiserver.k8s.io/v1beta1, with the fields that are used here.
type (
	selectorConfiguration struct {
		APIVersion string      `json:"apiVersion"`
		Kind       string      `json:"kind"`
		Selections []selection `json:"egressSelections"`
	}
	selection struct {
		Name       string     `json:"name"`
		Connection connection `json:"connection"`
	}
	connection struct {
		Protocol  string    `json:"proxyProtocol"`
		Transport transport `json:"transport"`
	}
	transport struct {
		TCP *tcp `json:"tcp,omitempty"`
		UDS *uds `json:"uds,omitempty"`
	}
	uds struct {
		Name string `json:"udsName"`
	}
	tcp struct {
		URL string    `json:"url"`
		TLS tlsConfig `json:"tlsConfig"`
	}
	tlsConfig struct {
		CABundle   string `json:"caBundle"`
		ClientKey  string `json:"clientKey"`
		ClientCert string `json:"clientCert"`
	}
)

// selector returns an EgressSelectorConfiguration for the traffic to the cluster alone: etcd and authentication
// webhooks of the control plane are dialled directly, as without it.
func selector(to transport) string {
	return string(document(selectorConfiguration{
		APIVersion: "apiserver.k8s.io/v1beta1", Kind: "EgressSelectorConfiguration",
		Selections: []selection{{Name: "cluster", Connection: connection{Protocol: "HTTPConnect", Transport: to}}},
	}))
}

// SocketSelector returns the EgressSelectorConfiguration for the socket of the sidecar.
func SocketSelector() string { return selector(transport{UDS: &uds{Name: Socket}}) }

// Gateway is the way of an apiserver that dials the gateways itself.
type Gateway struct {
	URL                       string // https://gateway.<tunnel domain>:<port>
	CABundle, ClientKey, Leaf string // files
}

// GatewaySelector returns the EgressSelectorConfiguration of an apiserver that dials the gateways itself.
// kube-apiserver reads the certificate only when it starts, so it must be restarted before that expires.
func GatewaySelector(g Gateway) string {
	return selector(transport{TCP: &tcp{
		URL: g.URL, TLS: tlsConfig{CABundle: g.CABundle, ClientKey: g.ClientKey, ClientCert: g.Leaf},
	}})
}

// option is one flag of kube-apiserver, without hyphens.
type option struct{ name, value string }

// flags returns the flags of kube-apiserver.
func (p Params) flags() []option {
	all := []option{
		{"egress-selector-config-file", configDir + "/" + configFile},
		{"kubelet-preferred-address-types", strings.Join(addressTypes, ",")},
	}
	if p.Endpoints {
		all = append(all, option{"enable-aggregator-routing", "true"})
	}
	return all
}

// arguments returns the flags but the excluded ones as on a command line.
func (p Params) arguments(without ...string) []string {
	var all []string
	for _, f := range p.flags() {
		if !strings.Contains(strings.Join(without, " "), f.name) {
			all = append(all, "--"+f.name+"="+f.value)
		}
	}
	return all
}

// sidecar returns the container that enrols for the apiserver and carries its connections. It has no readiness probe:
// an apiserver serves its clients whether its networks are reachable or not.
func (p Params) sidecar(hostNetwork bool) corev1.Container {
	listen, host := fmt.Sprintf(":%d", healthPort), ""
	if hostNetwork {
		host = "127.0.0.1"
		listen = host + listen
	}
	return corev1.Container{
		Name:  sidecarName,
		Image: p.Image,
		Args: []string{
			"run", "--bootstrap=" + secretDir + "/" + v1alpha1.BootstrapFileKey, "--state-dir=" + stateDir + "/egress",
			"--egress-socket=" + Socket, "--health-listen=" + listen,
		},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Host: host, Path: "/healthz", Port: intstr.FromInt32(healthPort),
		}}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](user), RunAsGroup: ptr.To[int64](user),
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: socketVolume, MountPath: socketDir},
			{Name: stateVolume, MountPath: stateDir},
			{Name: secretVolume, MountPath: secretDir, ReadOnly: true},
		},
	}
}

// hostedVolumes are the volumes of a control plane in Pods, in the namespace of the bootstrap Secret. The state ends
// with the Pod; the next one enrols again with the current token, which the Secret always has.
func (p Params) hostedVolumes() []corev1.Volume {
	// Only the sidecar mounts the Secret, and its user is neither the owner nor in the group of the files. The Secret is
	// not optional: without the file edge-agent ends, and a Pod with a container that restarts is not ready.
	const mode = 0o444
	return []corev1.Volume{
		{Name: socketVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi")),
		}}},
		{Name: stateVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("64Mi")),
		}}},
		{Name: secretVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: p.SecretName(), DefaultMode: ptr.To[int32](mode),
			Items: []corev1.KeyToPath{{Key: v1alpha1.BootstrapFileKey, Path: v1alpha1.BootstrapFileKey}},
		}}},
		{Name: configVolume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: p.configMapName()},
		}}},
	}
}

// apiserverMounts are the mounts of kube-apiserver in Pods.
func apiserverMounts() []corev1.VolumeMount {
	return []corev1.VolumeMount{
		{Name: socketVolume, MountPath: socketDir}, {Name: configVolume, MountPath: configDir, ReadOnly: true},
	}
}

// configMap returns the ConfigMap with the selector configuration, for hosted control planes.
func (p Params) configMap() object {
	return object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": p.configMapName(), "namespace": p.Namespace},
		"data": object{configFile: SocketSelector()},
	}
}

// object is a part of an object that a provider defines.
type object = map[string]any

// raw is text that is YAML already.
type raw string

// document returns a value as YAML.
func document(v any) []byte {
	if text, ok := v.(raw); ok {
		return []byte(text)
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		panic(err) // only for values without a form in JSON, which this package does not have
	}
	return text
}

// documents joins YAML documents. Each begins with a comment, of one line or several.
func documents(all ...[2]any) []byte {
	var out bytes.Buffer
	for i, d := range all {
		if i > 0 {
			out.WriteString("---\n")
		}
		for line := range strings.Lines(strings.TrimSpace(d[0].(string))) {
			out.WriteString("# " + strings.TrimSuffix(line, "\n") + "\n")
		}
		out.Write(document(d[1]))
	}
	return out.Bytes()
}
