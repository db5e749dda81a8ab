// Package v1alpha1 holds Fairlead's one custom resource, Tunnel, and every name that Fairlead writes into Kubernetes
// objects. It knows neither Envoy nor the way in which a Tunnel is served.
//
// +kubebuilder:object:generate=true
// +groupName=fairlead.dev
package v1alpha1
