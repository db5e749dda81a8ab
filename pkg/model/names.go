package model

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// TenantID is the third part of every reverse tunnel handshake. One installation is one tenant.
const TenantID = "fairlead"

const (
	maxName  = 253 // RFC 1035, section 2.3.4, without the root label
	maxLabel = 63  // the same
	// maxNode leaves room in a certificate's common name, which X.509 limits to 64 bytes.
	maxNode = 32
)

var (
	labelPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	hostPattern  = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)
	nodePattern  = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	idPattern    = regexp.MustCompile(`^[a-z0-9]{20,32}$`)
	gatewayName  = regexp.MustCompile(`^gateway-(0|[1-9][0-9]{0,4})$`)
)

// TunnelDomain is the DNS domain that contains every name of an installation.
type TunnelDomain string

// Hostname returns the tunnel hostname of a Cluster, which clients send as SNI or CONNECT authority. Dots in the name
// of the Cluster become "--", so two Clusters may have the same hostname; package decision decides which one holds it.
// If the result is not a DNS name, the error names the invalid part.
func (d TunnelDomain) Hostname(cluster Key) (string, error) {
	name := strings.ReplaceAll(cluster.Name, ".", "--") + "." + cluster.Namespace + "." + string(d)
	if err := ValidateDNSName(name); err != nil {
		return "", &FieldError{
			Field: "metadata.name", Value: cluster.Name, Problem: "gives no usable tunnel hostname: " + err.Error(),
			Cure: "give the Cluster a shorter name or the installation a shorter tunnel domain",
		}
	}
	return name, nil
}

// Contains reports whether a name is below the domain, or is the domain itself.
func (d TunnelDomain) Contains(name string) bool {
	return name == string(d) || strings.HasSuffix(name, "."+string(d))
}

// TunnelID returns the name of a tunnel in Envoy and in certificates. A user cannot choose such a name.
func (d TunnelDomain) TunnelID(id string) string { return id + d.TunnelIDSuffix() }

// TunnelIDSuffix returns the suffix of every tunnel id. No other name has it.
func (d TunnelDomain) TunnelIDSuffix() string { return ".id." + string(d) }

// ParseTunnelID is the inverse of TunnelID. It returns false if name is not a tunnel id of this domain.
func (d TunnelDomain) ParseTunnelID(name string) (id string, ok bool) {
	id, ok = strings.CutSuffix(name, d.TunnelIDSuffix())
	return id, ok && idPattern.MatchString(id)
}

// Gateway returns the name that all gateways have inside of a reverse tunnel.
func (d TunnelDomain) Gateway() string { return "gateway." + string(d) }

// GatewayReplica returns the name of one gateway on the public port. ValidateGatewayName must accept the argument.
func (d TunnelDomain) GatewayReplica(name string) string { return name + "." + string(d) }

// ParseGatewayReplica is the inverse of GatewayReplica. It returns false if host is not a gateway of this domain.
func (d TunnelDomain) ParseGatewayReplica(host string) (name string, ok bool) {
	name, ok = strings.CutSuffix(host, "."+string(d))
	return name, ok && gatewayName.MatchString(name)
}

// Lane returns the name of a lane of a gateway on the public port, from 1 to MaxLanes.
func (d TunnelDomain) Lane(gateway string, lane int) string {
	return gateway + lanePart + strconv.Itoa(lane) + "." + string(d)
}

// lanePart is between the name of a gateway and the number of a lane.
const lanePart = "-lane-"

// LaneMark is at the end of the node id and of the tunnel id with which an edge opens the reverse tunnels of its lanes:
// those of all lanes have the same. No node name and no DNS name has it.
const LaneMark = "_lane"

// Control returns the name of the control channel: the xds-server, reached through the public port.
func (d TunnelDomain) Control() string { return "control." + string(d) }

// Peers returns the SNI of connections between gateways, which forward clients to each other. No leaf has it.
func (d TunnelDomain) Peers() string { return "peers." + string(d) }

// Controller returns the name of the controller in its own certificate. It is never dialled.
func (d TunnelDomain) Controller() string { return "controller." + string(d) }

// Validate checks that the domain is a DNS name that leaves room for the names below it.
func (d TunnelDomain) Validate() error {
	if err := ValidateDNSName(string(d)); err != nil {
		return &FieldError{
			Field:   "tunnel domain",
			Value:   string(d),
			Problem: err.Error(),
			Cure:    "give a DNS domain such as tunnels.example.com",
		}
	}
	// This is the longest name that Fairlead builds.
	if n := len(d.EgressID(strings.Repeat("x", 32))); n > maxName {
		return &FieldError{
			Field: "tunnel domain", Value: string(d), Problem: fmt.Sprintf("leaves no room for egress ids, which would have "+
				"%d bytes of at most %d", n, maxName),
			Cure: "give a shorter domain",
		}
	}
	return nil
}

// NodeID returns the node id of a node name: the whole subject of its leaf, as Envoy prints it.
func NodeID(node string) string { return "CN=" + node }

// ParseNodeID is the inverse of NodeID. It returns false if id is not a valid node id.
func ParseNodeID(id string) (node string, ok bool) {
	node, ok = strings.CutPrefix(id, "CN=")
	return node, ok && ValidateNodeName(node) == nil
}

// ValidateNodeName checks a node name: at most 32 bytes of [a-z0-9.-], which Envoy's rc:// address can carry.
func ValidateNodeName(node string) error {
	if len(node) > maxNode || !nodePattern.MatchString(node) {
		return fmt.Errorf("node name %q is not 1 to %d bytes of [a-z0-9.-]", node, maxNode)
	}
	return nil
}

// ValidateGatewayName checks that a name is gateway-<i>.
func ValidateGatewayName(name string) error {
	if !gatewayName.MatchString(name) {
		return fmt.Errorf("gateway name %q is not gateway-<number>", name)
	}
	return nil
}

// ValidateID checks a Tunnel's spec.id.
func ValidateID(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("tunnel id %q is not 20 to 32 characters of [a-z0-9]", id)
	}
	return nil
}

// NewID returns a random id for a Tunnel, of 120 bits.
func NewID() string { return randomName(15) }

// NewNodeName returns a random node name for an edge, of 80 bits. It is never the name of a gateway.
func NewNodeName() string { return "edge-" + randomName(10) }

// NodeNameFor returns the node name of an edge that enrols with a token and a signing request. It depends only on
// these two, so an edge that repeats its request because it received no answer keeps its name. The name is as good as
// random: the request contains a key and a signature, and finding another request with the same name requires breaking
// 80 bits of SHA-256.
func NodeNameFor(tokenHash string, csr []byte) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "fairlead edge %d %s ", len(tokenHash), tokenHash)
	hash.Write(csr)
	return "edge-" + encodeName(hash.Sum(nil)[:10])
}

// NodeNameForPod returns the node name of an edge in a Pod of a workload cluster. It depends only on the tunnel id and
// the UID of the Pod: a Pod that lost its key keeps its name, so a revocation holds for every key and token of the Pod.
func NodeNameForPod(id, podUID string) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "fairlead pod %d %s %d %s", len(id), id, len(podUID), podUID)
	return "edge-" + encodeName(hash.Sum(nil)[:10])
}

// randomName encodes n random bytes. n must be a multiple of 5.
func randomName(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: package crypto/rand ends the process instead
	return encodeName(b)
}

// encodeName encodes bytes in [a-z2-7]. Their number must be a multiple of 5.
func encodeName(b []byte) string { return strings.ToLower(base32.StdEncoding.EncodeToString(b)) }

// ValidateDNSName checks that a name is a lower-case DNS name of at least two labels. It rejects a name without a dot,
// because the gateways' own Envoy clusters have such names and clients must never reach these.
func ValidateDNSName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case net.ParseIP(name) != nil:
		return errors.New("it is an IP address, for which clients send no SNI")
	case !strings.Contains(name, "."):
		return fmt.Errorf("%q has no dot", name)
	}
	return validateLabels(name, labelPattern)
}

// validateLabels checks the lengths of a name and its labels, and each label against a pattern.
func validateLabels(name string, pattern *regexp.Regexp) error {
	if len(name) > maxName {
		return fmt.Errorf("%q has %d bytes, at most %d are allowed", name, len(name), maxName)
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > maxLabel {
			return fmt.Errorf("label %q of %q has %d bytes, at most %d are allowed", label, name, len(label), maxLabel)
		}
		if !pattern.MatchString(label) {
			return fmt.Errorf("label %q of %q has characters outside [a-z0-9-], or starts or ends with a hyphen", label, name)
		}
	}
	return nil
}

// ParseEndpoint parses host:port. The host is an IP address (IPv6 in brackets) or a DNS name.
func ParseEndpoint(s string) (Endpoint, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return Endpoint{}, fmt.Errorf("address %q is not host:port", s)
	}
	if strings.HasPrefix(s, "[") && !strings.Contains(host, ":") { // invalid in a URL
		return Endpoint{}, fmt.Errorf("address %q has brackets around a host that is not an IPv6 address", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Endpoint{}, fmt.Errorf("port %q of %q is not a number from 1 to 65535", port, s)
	}
	e := Endpoint{Host: host, Port: uint16(n)}
	return e, e.Validate()
}
