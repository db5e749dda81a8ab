package model

import "fmt"

// Role is what a certificate entitles to. Each role has names of its own form, so that no certificate serves for two.
type Role string

// The four roles.
const (
	RoleEdge    Role = "edge"    // dials gateways, lets gateways into the tunnel, reads its own configuration
	RoleGateway Role = "gateway" // accepts edges, reads the gateways' configuration
	RoleControl Role = "control" // is the xds-server
	// RoleController is the controller, as a client of the xds-servers.
	RoleController Role = "controller"
)

// Subject is all that a certificate of ours says about its holder.
type Subject struct {
	Role Role
	Node string // the node name: random for an edge, gateway-<i> for a gateway, "control" for the xds-server
	ID   string // of the Tunnel; only for an edge
}

// NodeID is the subject's node id, in Envoy's handshake as in xDS.
func (s Subject) NodeID() string { return NodeID(s.Node) }

// DNSNames are the subject alternative names of a subject's leaf: design section 2. Its common name is Subject.Node.
func (d TunnelDomain) DNSNames(s Subject) []string {
	switch s.Role {
	case RoleEdge:
		return []string{d.TunnelID(s.ID)}
	case RoleGateway:
		return []string{d.GatewayReplica(s.Node), d.Gateway()}
	case RoleControl:
		return []string{d.Control()}
	case RoleController:
		return []string{d.Controller()}
	}
	return nil
}

// ParseSubject reads the subject of a verified leaf from its common name and DNS names. It refuses everything that
// DNSNames would not have written for the same subject.
func (d TunnelDomain) ParseSubject(commonName string, dnsNames []string) (Subject, error) {
	s := Subject{Node: commonName}
	if len(dnsNames) > 0 {
		if id, ok := d.ParseTunnelID(dnsNames[0]); ok {
			s.Role, s.ID = RoleEdge, id
		} else if name, ok := d.ParseGatewayReplica(dnsNames[0]); ok && name == commonName {
			s.Role = RoleGateway
		} else if dnsNames[0] == d.Control() && commonName == string(RoleControl) {
			s.Role = RoleControl
		} else if dnsNames[0] == d.Controller() && commonName == string(RoleController) {
			s.Role = RoleController
		}
	}
	want := d.DNSNames(s)
	if s.Role == "" || len(want) != len(dnsNames) || ValidateNodeName(commonName) != nil {
		return Subject{}, fmt.Errorf("certificate CN=%s with DNS names %q is of no profile of %s", commonName, dnsNames, d)
	}
	for i := range want {
		if want[i] != dnsNames[i] {
			return Subject{}, fmt.Errorf("certificate CN=%s with DNS names %q is of no profile of %s", commonName, dnsNames, d)
		}
	}
	// An edge whose common name were a gateway's could pass for one where only the common name is looked at.
	if s.Role == RoleEdge && ValidateGatewayName(s.Node) == nil {
		return Subject{}, fmt.Errorf("certificate CN=%s is an edge's, but has a gateway's node name", commonName)
	}
	return s, nil
}

// ControlSubject is the subject of every xds-server.
func ControlSubject() Subject { return Subject{Role: RoleControl, Node: string(RoleControl)} }

// ControllerSubject is the subject of the controller.
func ControllerSubject() Subject {
	return Subject{Role: RoleController, Node: string(RoleController)}
}
