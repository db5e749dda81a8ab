// Package v1alpha1 defines Fairlead's custom resources, Tunnel and RemoteNetwork, and every name that Fairlead
// writes into Kubernetes objects. It knows neither Envoy nor how a Tunnel is served.
//
// +kubebuilder:object:generate=true
// +groupName=fairlead.dev
package v1alpha1
