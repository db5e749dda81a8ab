package decision

import (
	"slices"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Record writes a decision into a status: the id that the Tunnel holds, the names that are served, and the
// configuration of edges and gateways. What is on record is kept in later decisions: see Names.
func Record(status *v1alpha1.TunnelStatus, r Resolution) {
	before := status.Served
	RecordNothing(status)
	if r.HoldsID {
		status.ID = r.Cluster.ID
	}
	if r.Cluster.Withheld {
		return
	}
	status.Hostname, status.Names = r.Cluster.Hostname, r.Cluster.Names()
	if r.Cluster.Prepared {
		status.Served = &v1alpha1.ServedStatus{EnrolmentOnly: true}
		return
	}
	status.Served = &v1alpha1.ServedStatus{ClusterUID: r.ClusterUID, Limits: v1alpha1.ServedLimits{
		Connections: r.Cluster.Limits.Connections, PendingConnections: r.Cluster.Limits.Pending,
		Bandwidth: r.Cluster.Limits.Bandwidth,
	}}
	if r.Cluster.Network != nil {
		status.Served.Network = recordNetwork(*r.Cluster.Network)
		if before != nil && before.Network != nil {
			status.Served.Network.Narrowed = narrowed(*before.Network, *r.Cluster.Network)
		}
	}
	if r.Cluster.Network != nil || r.Cluster.Egress {
		return
	}
	for _, address := range append([]model.Endpoint{r.Cluster.APIServer}, r.Cluster.Others...) {
		status.Served.APIServers = append(status.Served.APIServers, address.String())
	}
}

// RecordNothing removes a decision from a status.
func RecordNothing(status *v1alpha1.TunnelStatus) {
	status.Hostname, status.Names, status.ID, status.Served = "", nil, "", nil
}

// Role returns the role of the nodes that enrol with a Tunnel. It depends on nothing but spec.egressOf, which is
// immutable, so no token and no certificate of a Tunnel ever has another role.
func Role(tunnel *v1alpha1.Tunnel) model.Role {
	if tunnel.Spec.EgressOf != "" {
		return model.RoleEgress
	}
	return model.RoleEdge
}

// TokenRevoked reports whether an edge that enrolled with this token is revoked, or the edge of a Pod, which may have
// any token of the Tunnel. The record of the token is removed a moment later, and the revoked edge must not enrol with
// it in between.
func TokenRevoked(tunnel *v1alpha1.Tunnel, hash string) bool {
	return slices.ContainsFunc(tunnel.Status.Edges, func(e v1alpha1.EdgeStatus) bool {
		node, _ := model.ParseNodeID(e.NodeID)
		return (e.TokenSHA256 == hash || (e.Pod != nil && e.RevokedAt == nil)) &&
			slices.Contains(tunnel.Spec.RevokedEdges, node)
	})
}
