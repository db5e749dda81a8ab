package model

import (
	"fmt"
	"slices"
)

// Role is what a certificate authorises. Each role has its own form of names, so that no certificate is valid for two
// roles.
type Role string

// The five roles.
const (
	RoleEdge    Role = "edge"    // dials gateways, accepts gateways in the reverse tunnel, reads its own configuration
	RoleEgress  Role = "egress"  // dials gateways for an apiserver, to reach the networks of its Cluster
	RoleGateway Role = "gateway" // accepts edges, reads the gateways' configuration
	RoleControl Role = "control" // is the xds-server
	// RoleController is the controller, as a client of the xds-servers.
	RoleController Role = "controller"
)

// Subject is the identity in a certificate that Fairlead issued.
type Subject struct {
	Role Role
	Node string // the node name: random for an edge, gateway-<i> for a gateway, "control" for the xds-server
	ID   string // of the Tunnel; only for an edge and for egress
}

// Enrols reports whether a role belongs to a Tunnel, so that its nodes enrol with a bootstrap token and can be revoked.
func (r Role) Enrols() bool { return r == RoleEdge || r == RoleEgress }

// NodeID returns the subject's node id, in Envoy's handshake and in xDS.
func (s Subject) NodeID() string { return NodeID(s.Node) }

// DNSNames returns the subject alternative names of a subject's leaf. Its common name is Subject.Node. It returns nil
// for an unknown role.
func (d TunnelDomain) DNSNames(s Subject) []string {
	switch s.Role {
	case RoleEdge:
		return []string{d.TunnelID(s.ID)}
	case RoleEgress:
		return []string{d.EgressID(s.ID)}
	case RoleGateway:
		return []string{d.GatewayReplica(s.Node), d.Gateway()}
	case RoleControl:
		return []string{d.Control()}
	case RoleController:
		return []string{d.Controller()}
	}
	return nil
}

// ParseSubject returns the subject of a verified leaf from its common name and DNS names. It rejects names that
// DNSNames would not return for the same subject.
func (d TunnelDomain) ParseSubject(commonName string, dnsNames []string) (Subject, error) {
	s := Subject{Node: commonName}
	if len(dnsNames) > 0 {
		if id, ok := d.ParseTunnelID(dnsNames[0]); ok {
			s.Role, s.ID = RoleEdge, id
		} else if id, ok := d.ParseEgressID(dnsNames[0]); ok {
			s.Role, s.ID = RoleEgress, id
		} else if name, ok := d.ParseGatewayReplica(dnsNames[0]); ok && name == commonName {
			s.Role = RoleGateway
		} else if dnsNames[0] == d.Control() && commonName == string(RoleControl) {
			s.Role = RoleControl
		} else if dnsNames[0] == d.Controller() && commonName == string(RoleController) {
			s.Role = RoleController
		}
	}
	if s.Role == "" || !slices.Equal(d.DNSNames(s), dnsNames) || ValidateNodeName(commonName) != nil {
		return Subject{}, fmt.Errorf("certificate CN=%s with DNS names %q matches no profile of %s", commonName, dnsNames, d)
	}
	// An edge with a gateway's common name would be accepted as a gateway by a check that reads only the common name.
	if s.Role.Enrols() && ValidateGatewayName(s.Node) == nil {
		return Subject{}, fmt.Errorf("certificate CN=%s has the role %s, but the node name of a gateway", commonName, s.Role)
	}
	return s, nil
}

// ControlSubject returns the subject of every xds-server.
func ControlSubject() Subject { return Subject{Role: RoleControl, Node: string(RoleControl)} }

// ControllerSubject returns the subject of the controller.
func ControllerSubject() Subject {
	return Subject{Role: RoleController, Node: string(RoleController)}
}
