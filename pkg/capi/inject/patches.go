package inject

import (
	"encoding/json"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// VariableName is the ClusterClass variable with the Options that a Cluster does not contain.
const VariableName = "fairlead"

// Variable is the value of that variable.
type Variable struct {
	TunnelDomain  string `json:"tunnelDomain"`
	Image         string `json:"image"`
	APIServerPort int32  `json:"apiServerPort,omitempty"`
}

// inline are the values as templates of ClusterClass patches. A dot in the name of a Cluster becomes two hyphens, as
// in model.TunnelDomain.Hostname.
var inline = values{
	hostname: `{{ .builtin.cluster.name | replace "." "--" }}.{{ .builtin.cluster.namespace }}.{{ .` + VariableName +
		`.tunnelDomain }}`,
	secret: `{{ .builtin.cluster.name }}` + v1alpha1.BootstrapSecretSuffix,
	image:  `{{ .` + VariableName + `.image }}`,
	port:   `{{ .` + VariableName + `.apiServerPort }}`,
}

// enabledIf skips Clusters that do not request edges on their control plane: one ClusterClass serves both kinds.
var enabledIf = fmt.Sprintf(
	`{{ and (eq (dig "cluster" "metadata" "labels" %q "" .builtin) %q) `+
		`(eq (dig "cluster" "metadata" "annotations" %q "" .builtin) %q) }}`,
	v1alpha1.TunnelLabel,
	v1alpha1.TunnelEnabled,
	v1alpha1.EdgesAnnotation,
	v1alpha1.EdgesOnControlPlane,
)

// Requested reports whether a Cluster with these labels and annotations requests edges on its control plane.
func Requested(labels, annotations map[string]string) bool {
	return labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelEnabled &&
		annotations[v1alpha1.EdgesAnnotation] == v1alpha1.EdgesOnControlPlane
}

// kubeadmVersion is the version of KubeadmControlPlane and its template in patches and snippet. The injection is the
// same for v1beta1, but a ClusterClass may not have a patch for a version that it does not use.
const kubeadmVersion = "controlplane.cluster.x-k8s.io/v1beta2"

// Patches returns the patches of a ClusterClass that add an edge to its KubeadmControlPlaneTemplate. They append to
// existing lists of the template; ListPatches creates missing lists.
func Patches() ([]clusterv1.ClusterClassPatch, error) {
	var operations []clusterv1.JSONPatch
	for _, file := range inline.files() {
		operation, err := appendTo(filesPath, file)
		if err != nil {
			return nil, err
		}
		operations = append(operations, operation)
	}
	command, err := json.Marshal(prepareCommand)
	if err != nil {
		return nil, fmt.Errorf("writing command: %w", err)
	}
	operations = append(
		operations,
		clusterv1.JSONPatch{Op: "add", Path: pointer(commandsPath) + "/-", Value: &apiextensionsv1.JSON{Raw: command}},
	)
	operation, err := appendTo(sansPath, inline.hostname)
	if err != nil {
		return nil, err
	}
	return []clusterv1.ClusterClassPatch{patch("fairlead-edge", append(operations, operation)...)}, nil
}

// appendTo returns the operation that appends a value that contains expressions.
func appendTo(path []string, value any) (clusterv1.JSONPatch, error) {
	text, err := yaml.Marshal(value)
	if err != nil {
		return clusterv1.JSONPatch{}, fmt.Errorf("writing patch of %s: %w", join(path), err)
	}
	return clusterv1.JSONPatch{
		Op:        "add",
		Path:      pointer(path) + "/-",
		ValueFrom: &clusterv1.JSONPatchValue{Template: string(text)},
	}, nil
}

// ListPatches returns patches that create the lists that Patches appends to, one patch for each. A patch for an
// existing list would empty it, so each must be chosen individually, and must precede Patches.
func ListPatches() []clusterv1.ClusterClassPatch {
	var all []clusterv1.ClusterClassPatch
	for _, list := range []struct {
		name, value string
		path        []string
	}{
		{"fairlead-no-files", `[]`, filesPath},
		{"fairlead-no-pre-kubeadm-commands", `[]`, commandsPath},
		{"fairlead-no-cluster-configuration", `{"apiServer":{"certSANs":[]}}`, sansPath[:1]},
		{"fairlead-no-api-server", `{"certSANs":[]}`, sansPath[:2]},
		{"fairlead-no-cert-sans", `[]`, sansPath},
	} {
		all = append(
			all,
			patch(
				list.name,
				clusterv1.JSONPatch{Op: "add", Path: pointer(list.path), Value: &apiextensionsv1.JSON{Raw: []byte(list.value)}},
			),
		)
	}
	return all
}

func patch(name string, operations ...clusterv1.JSONPatch) clusterv1.ClusterClassPatch {
	return clusterv1.ClusterClassPatch{Name: name, EnabledIf: enabledIf, Definitions: []clusterv1.PatchDefinition{{
		Selector: clusterv1.PatchSelector{
			APIVersion:     kubeadmVersion,
			Kind:           "KubeadmControlPlaneTemplate",
			MatchResources: clusterv1.PatchSelectorMatch{ControlPlane: ptr.To(true)},
		},
		JSONPatches: operations,
	}}}
}

func pointer(path []string) string {
	return "/spec/template/spec/kubeadmConfigSpec/" + strings.Join(path, "/")
}

// Definition returns the definition of the variable, with the defaults of an installation. A Cluster keeps the
// defaults from its creation, so that later ones replace none of its machines.
func Definition(defaults Variable) (clusterv1.ClusterClassVariable, error) {
	value, err := json.Marshal(defaults)
	if err != nil {
		return clusterv1.ClusterClassVariable{}, fmt.Errorf("writing defaults of variable %s: %w", VariableName, err)
	}
	return clusterv1.ClusterClassVariable{
		Name:     VariableName,
		Required: ptr.To(false),
		Schema: clusterv1.VariableSchema{OpenAPIV3Schema: clusterv1.JSONSchemaProps{
			Type: "object", Required: []string{"tunnelDomain", "image"}, Default: &apiextensionsv1.JSON{Raw: value},
			Properties: map[string]clusterv1.JSONSchemaProps{
				"tunnelDomain": {
					Type:        "string",
					Pattern:     DomainPattern,
					MaxLength:   ptr.To[int64](200),
					Description: "the tunnel domain of the installation: TUNNEL_DOMAIN of its settings",
				},
				"image": {
					Type:        "string",
					Pattern:     ImagePattern,
					MaxLength:   ptr.To[int64](maxImage),
					Description: "the image of the edge; another one replaces the control-plane machines",
				},
				"apiServerPort": {
					Type: "integer", Minimum: ptr.To[int64](1), Maximum: ptr.To[int64](65535),
					Default:     &apiextensionsv1.JSON{Raw: []byte("6443")},
					Description: "where the apiserver of a machine listens: initConfiguration.localAPIEndpoint.bindPort",
				},
			},
		}},
	}, nil
}

// snippet are the values as placeholders of clusterctl's templates and of envsubst.
var snippet = values{
	hostname: "${CLUSTER_NAME}.${NAMESPACE}.${FAIRLEAD_TUNNEL_DOMAIN}",
	secret:   "${CLUSTER_NAME}" + v1alpha1.BootstrapSecretSuffix,
	image:    "${FAIRLEAD_EDGE_IMAGE}",
	port:     "6443",
}

// Snippet returns the fields to add to a KubeadmControlPlane, with the placeholders ${CLUSTER_NAME}, ${NAMESPACE},
// ${FAIRLEAD_TUNNEL_DOMAIN} and ${FAIRLEAD_EDGE_IMAGE}.
func Snippet() (map[string]any, error) {
	config := map[string]any{}
	if err := snippet.into(config); err != nil {
		return nil, err
	}
	return map[string]any{
		"apiVersion": kubeadmVersion, "kind": "KubeadmControlPlane",
		"metadata": map[string]any{"name": "${CLUSTER_NAME}-control-plane", "namespace": "${NAMESPACE}"},
		"spec":     map[string]any{"kubeadmConfigSpec": config},
	}, nil
}
