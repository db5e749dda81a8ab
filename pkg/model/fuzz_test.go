package model

import (
	"net"
	"slices"
	"strings"
	"testing"
)

const fuzzDomain TunnelDomain = "tunnels.example.com"

// FuzzSubject parses subjects of certificates. Each part of an accepted subject has the form that the rest of the
// program relies on, and its profile writes exactly the same names.
func FuzzSubject(f *testing.F) {
	id := "aaaaaaaaaaaaaaaaaaaa"
	for _, s := range []Subject{
		{RoleEdge, "edge-1", id},
		{RoleGateway, "gateway-0", ""},
		ControlSubject(),
		ControllerSubject(),
	} {
		f.Add(s.Node, strings.Join(fuzzDomain.DNSNames(s), "\n"))
	}
	f.Add("gateway-0", id+".id.tunnels.example.com")
	f.Add("control", "control.tunnels.example.com\ngateway.tunnels.example.com")
	f.Add("edge-1", id+".id.id.tunnels.example.com")
	f.Add("gateway-00", "gateway-00.tunnels.example.com\ngateway.tunnels.example.com")
	f.Fuzz(func(t *testing.T, commonName, joined string) {
		names := strings.Split(joined, "\n")
		s, err := fuzzDomain.ParseSubject(commonName, names)
		if err != nil {
			if s != (Subject{}) {
				t.Errorf("an error and %+v", s)
			}
			return
		}
		if !slices.Equal(fuzzDomain.DNSNames(s), names) || s.Node != commonName {
			t.Errorf("%+v has the names %q", s, fuzzDomain.DNSNames(s))
		}
		if node, ok := ParseNodeID(s.NodeID()); !ok || node != s.Node {
			t.Errorf("the node id %q is read as %q, %v", s.NodeID(), node, ok)
		}
		isGateway := ValidateGatewayName(s.Node) == nil
		if isGateway != (s.Role == RoleGateway) || (s.ID != "") != (s.Role == RoleEdge) ||
			s.Role == RoleEdge && ValidateID(s.ID) != nil {
			t.Errorf("%+v is of two roles", s)
		}
	})
}

// FuzzNames parses names and addresses. An accepted name is formatted as it was, and stays within the domain.
func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"", "a.b", "10.0.0.1:443", "[::1]:6443", "[fe80::1%eth0]:1", "host:0", "host:65536", "host:+1", "A.B:1", "a_b.c:1",
		"a..b", "-a.b", "1.2.3:1", "ff:1",
		"aaaaaaaaaaaaaaaaaaaa.id.tunnels.example.com", "gateway-0.tunnels.example.com", "CN=edge-1", "a--b.ns",
		strings.Repeat("a", 64) + ".b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if e, err := ParseEndpoint(s); err == nil {
			again, err := ParseEndpoint(e.String())
			if err != nil || again != e {
				t.Errorf("%q is %+v, and again %+v, %v", s, e, again, err)
			}
			if strings.ContainsAny(e.Host, "/@ \t\r\n\x00\"\\?#") {
				t.Errorf("the host is %q", e.Host)
			}
		}
		if ValidateDNSName(s) == nil &&
			(net.ParseIP(s) != nil || s != strings.ToLower(s) || len(s) > maxName || !strings.Contains(s, ".")) {
			t.Errorf("%q is taken as a DNS name", s)
		}
		if id, ok := fuzzDomain.ParseTunnelID(s); ok &&
			(fuzzDomain.TunnelID(id) != s || ValidateID(id) != nil || ValidateDNSName(s) != nil) {
			t.Errorf("%q is taken as the tunnel id %q", s, id)
		}
		if name, ok := fuzzDomain.ParseGatewayReplica(s); ok &&
			(fuzzDomain.GatewayReplica(name) != s || ValidateGatewayName(name) != nil) {
			t.Errorf("%q is taken as the gateway %q", s, name)
		}
		namespace, name, _ := strings.Cut(s, "/")
		if host, err := fuzzDomain.Hostname(Key{Namespace: namespace, Name: name}); err == nil &&
			(!fuzzDomain.Contains(host) || ValidateDNSName(host) != nil) {
			t.Errorf("the hostname of %q is %q", s, host)
		}
	})
}
