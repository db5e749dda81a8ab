package model

import "fmt"

// Role is what a certificate authorises. Each role has its own form of names, so that no certificate is valid for two
// roles.
type Role string

// The four roles.
const (
	RoleEdge    Role = "edge"    // dials gateways, accepts gateways in the reverse tunnel, reads its own configuration
	RoleGateway Role = "gateway" // accepts edges, reads the gateways' configuration
	RoleControl Role = "control" // is the xds-server
	// RoleController is the controller, as a client of the xds-servers.
	RoleController Role = "controller"
)

// Subject is the identity in a certificate that Fairlead issued.
type Subject struct {
	Role Role
	Node string // the node name: random for an edge, gateway-<i> for a gateway, "control" for the xds-server
	ID   string // of the Tunnel; only for an edge
}

// NodeID returns the subject's node id, in Envoy's handshake and in xDS.
func (s Subject) NodeID() string { return NodeID(s.Node) }

// DNSNames returns the subject alternative names of a subject's leaf. Its common name is Subject.Node. It returns nil
// for an unknown role.
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

// ParseSubject returns the subject of a verified leaf from its common name and DNS names. It rejects names that
// DNSNames would not return for the same subject.
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
		return Subject{}, fmt.Errorf("certificate CN=%s with DNS names %q matches no profile of %s", commonName, dnsNames, d)
	}
	for i := range want {
		if want[i] != dnsNames[i] {
			return Subject{}, fmt.Errorf("certificate CN=%s with DNS names %q matches no profile of %s", commonName, dnsNames, d)
		}
	}
	// An edge with a gateway's common name would be accepted as a gateway by a check that reads only the common name.
	if s.Role == RoleEdge && ValidateGatewayName(s.Node) == nil {
		return Subject{}, fmt.Errorf(
			"certificate CN=%s has the profile of an edge, but the node name of a gateway", commonName,
		)
	}
	return s, nil
}

// ControlSubject returns the subject of every xds-server.
func ControlSubject() Subject { return Subject{Role: RoleControl, Node: string(RoleControl)} }

// ControllerSubject returns the subject of the controller.
func ControllerSubject() Subject {
	return Subject{Role: RoleController, Node: string(RoleController)}
}
