package source

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// clusterMetadata returns an object with the type of Clusters without anything else. Of a Cluster only the metadata is
// read: there may be 10,000, each with a topology.
func clusterMetadata() *metav1.PartialObjectMetadata {
	c := &metav1.PartialObjectMetadata{}
	c.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Cluster"))
	return c
}

// stripCluster keeps the identity of a Cluster.
func stripCluster(object any) (any, error) {
	c, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	kept := clusterMetadata()
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = c.Namespace, c.Name, c.UID, c.ResourceVersion
	return kept, nil
}

// stripTunnel keeps the fields of a Tunnel that are read here: of its spec what withdraws something, of its status
// what the controller has granted, the token or the Pod of each edge, and which are revoked.
func stripTunnel(object any) (any, error) {
	t, ok := object.(*v1alpha1.Tunnel)
	if !ok {
		return object, nil
	}
	kept := &v1alpha1.Tunnel{}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = t.Namespace, t.Name, t.UID, t.ResourceVersion
	kept.CreationTimestamp, kept.DeletionTimestamp, kept.OwnerReferences = t.CreationTimestamp, t.DeletionTimestamp,
		t.OwnerReferences
	if until, ok := t.Annotations[v1alpha1.PreparedAnnotation]; ok {
		kept.Annotations = map[string]string{v1alpha1.PreparedAnnotation: until}
	}
	kept.ClaimID(t.ClaimedID())
	kept.Spec.ExtraNames, kept.Spec.RevokedEdges = t.Spec.ExtraNames, t.Spec.RevokedEdges
	kept.Spec.Kubeconfig.Mode = t.Spec.Kubeconfig.Mode
	kept.Spec.EdgeServiceAccount = t.Spec.EdgeServiceAccount
	kept.Spec.Network, kept.Spec.EgressOf = t.Spec.Network, t.Spec.EgressOf
	kept.Status.ID, kept.Status.Hostname, kept.Status.Names = t.Status.ID, t.Status.Hostname, t.Status.Names
	kept.Status.Served, kept.Status.ServiceAccountIssuer = t.Status.Served, t.Status.ServiceAccountIssuer
	kept.Status.Kubeconfig.EndpointName = t.Status.Kubeconfig.EndpointName
	kept.Status.Tokens, kept.Status.BootReportTokens = t.Status.Tokens, t.Status.BootReportTokens
	for i := range t.Status.Edges {
		e := &t.Status.Edges[i]
		if e.TokenSHA256 == "" && e.Pod == nil && e.RevokedAt == nil {
			continue
		}
		of := v1alpha1.EdgeStatus{NodeID: e.NodeID, TokenSHA256: e.TokenSHA256, RevokedAt: e.RevokedAt}
		if e.Pod != nil {
			of.Pod = &v1alpha1.EdgePodStatus{}
		}
		kept.Status.Edges = append(kept.Status.Edges, of)
	}
	return kept, nil
}

// stripNetwork keeps the spec and the deletion of a RemoteNetwork, which withdraw what was granted.
func stripNetwork(object any) (any, error) {
	n, ok := object.(*v1alpha1.RemoteNetwork)
	if !ok {
		return object, nil
	}
	kept := &v1alpha1.RemoteNetwork{Spec: n.Spec}
	kept.Namespace, kept.Name, kept.UID, kept.ResourceVersion = n.Namespace, n.Name, n.UID, n.ResourceVersion
	kept.DeletionTimestamp = n.DeletionTimestamp
	return kept, nil
}
