// Package edge has the manifests of this folder that programs of ours hand on. It knows nothing of what they do with them.
package edge

import _ "embed" // for the files below

// StaticPod is static-pod.yaml: the edge of a control-plane node, for the image fairlead-edge and an apiserver on port 6443.
//
//go:embed static-pod.yaml
var StaticPod string

// Deployment is deployment.yaml: edges in the workload cluster, whose Secret fairlead-edge-bootstrap somebody else brings.
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
