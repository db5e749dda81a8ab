// Package edge embeds the manifests of this directory that programs use. It does not know how they use them.
package edge

import (
	_ "embed" // for the files below
	"fmt"
	"maps"
	"slices"
	"strings"
)

// StaticPod is static-pod.yaml: the edge of a control-plane node, for the image fairlead-edge and an apiserver on port
// 6443.
//
//go:embed static-pod.yaml
var StaticPod string

// Deployment is deployment.yaml: edges in the workload cluster, with their ServiceAccount, disruption budget and
// NetworkPolicy. The user must create the namespace and the Secret fairlead-edge-bootstrap, and replace TUNNEL_ID.
//
//go:embed deployment.yaml
var Deployment string

// DaemonSet is daemonset.yaml: an edge of a RemoteNetwork on each of its machines, with an endpoint of their apiserver.
// The user must create the namespace and the Secret fairlead-network-bootstrap.
//
//go:embed daemonset.yaml
var DaemonSet string

// AgentUnit and EnvoyUnit are the units of systemd, edge-agent.service and edge-envoy.service.
var (
	//go:embed edge-agent.service
	AgentUnit string
	//go:embed edge-envoy.service
	EnvoyUnit string
)

// Endpoint returns StaticPod or DaemonSet for an edge of a RemoteNetwork that listens at an address; empty: it does not
// listen. It replaces the apiserver nearby, which such an edge does not dial.
func Endpoint(manifest, listen string) string {
	var lines []string
	for _, line := range strings.SplitAfter(manifest, "\n") {
		text := strings.TrimSpace(line)
		if !strings.HasPrefix(text, "- --local-apiserver=") && !strings.HasPrefix(text, "- --apiserver-listen=") {
			lines = append(lines, line)
			continue
		}
		if listen != "" {
			lines = append(lines, strings.Replace(line, text, "- --apiserver-listen="+listen, 1))
		}
	}
	return strings.Join(lines, "")
}

// DaemonSetOf returns a manifest of Endpoint for DaemonSet for one of several networks of a Cluster: the names of the
// DaemonSet and of its Secret begin with that of the network. It is quoted, because a number is a valid name. It runs
// on the nodes with all labels of selector.
func DaemonSetOf(manifest, network string, selector map[string]string) string {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(selector)) {
		labels = append(labels, fmt.Sprintf("%s: %q", name, selector[name]))
	}
	return strings.NewReplacer(
		"  name: fairlead-network\n  namespace", fmt.Sprintf("  name: %q\n  namespace", network),
		"app.kubernetes.io/name: fairlead-network}",
		fmt.Sprintf("app.kubernetes.io/name: fairlead-network, app.kubernetes.io/instance: %q}", network),
		"secretName: fairlead-network-bootstrap", "secretName: "+network+"-bootstrap",
		"nodeSelector: {}", "nodeSelector: {"+strings.Join(labels, ", ")+"}",
	).Replace(manifest)
}

// DeploymentOf returns Deployment for the tunnel with an id and for an image. The caller has validated both.
func DeploymentOf(id, image string) string {
	return strings.NewReplacer("TUNNEL_ID", id, "image: fairlead-edge", "image: "+image).Replace(Deployment)
}
