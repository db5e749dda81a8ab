// Package edge embeds the manifests of this directory that programs use. It does not know how they use them.
package edge

import (
	_ "embed" // for the files below
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

// AgentUnit and EnvoyUnit are the units of systemd, edge-agent.service and edge-envoy.service.
var (
	//go:embed edge-agent.service
	AgentUnit string
	//go:embed edge-envoy.service
	EnvoyUnit string
)

// DeploymentOf returns Deployment for the tunnel with an id and for an image. The caller has validated both.
func DeploymentOf(id, image string) string {
	return strings.NewReplacer("TUNNEL_ID", id, "image: fairlead-edge", "image: "+image).Replace(Deployment)
}
