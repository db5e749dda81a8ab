package envoy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

// metadataKey is Fairlead's field in the metadata of an Envoy node.
const metadataKey = "fairlead"

// GatewayBind contains the addresses of the three listeners of one gateway, and its version. Every host must be an IP
// address.
type GatewayBind struct {
	Public    model.Endpoint // for edges
	APIServer model.Endpoint // for clients, by SNI
	Connect   model.Endpoint // for clients, by CONNECT
	Version   Version        // for which its listeners are rendered
}

// Metadata returns the metadata of the gateway's Envoy node with the addresses, which sends them to the xds-server.
func (b GatewayBind) Metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{}
	for _, l := range b.listeners() {
		fields[l.name] = structpb.NewStringValue(l.at.String())
	}
	b.Version.addTo(fields)
	return ownMetadata(fields)
}

func ownMetadata(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		metadataKey: structpb.NewStructValue(&structpb.Struct{Fields: fields}),
	}}
}

// ParseGatewayBind is the inverse of Metadata. The error names the missing or malformed address. node may be nil,
// which is an error.
func ParseGatewayBind(node *corev3.Node) (GatewayBind, error) {
	var b GatewayBind
	fields := node.GetMetadata().GetFields()[metadataKey].GetStructValue().GetFields()
	for _, l := range b.listeners() {
		at, err := model.ParseEndpoint(fields[l.name].GetStringValue())
		if err != nil {
			return GatewayBind{}, fmt.Errorf("reading address of listener %s from node metadata: %w", l.name, err)
		}
		*l.at = at
	}
	b.Version = versionOf(fields)
	return b, b.Validate()
}

// Validate checks that every address is an IP address and a port.
func (b GatewayBind) Validate() error {
	for _, l := range b.listeners() {
		if err := l.at.Validate(); err != nil {
			return fmt.Errorf("checking address of listener %s: %w", l.name, err)
		}
		if net.ParseIP(l.at.Host) == nil {
			return fmt.Errorf("checking address of listener %s: %q is not an IP address", l.name, l.at.Host)
		}
	}
	return nil
}

// ParseListen parses the address of one of the listeners: IP:port, or :port for all addresses of the machine. With ipv6
// these are ::, where Envoy accepts both families; without it, because the machine has no IPv6, they are 0.0.0.0.
func ParseListen(address string, ipv6 bool) (model.Endpoint, error) {
	if port, all := strings.CutPrefix(address, ":"); all {
		host := netip.IPv4Unspecified()
		if ipv6 {
			host = netip.IPv6Unspecified()
		}
		address = net.JoinHostPort(host.String(), port)
	}
	return model.ParseEndpoint(address)
}

// Edges returns the address for edges. It is invalid if Validate rejects the host.
func (b GatewayBind) Edges() netip.AddrPort {
	ip, err := netip.ParseAddr(b.Public.Host)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, b.Public.Port)
}

// Clients returns the addresses for clients.
func (b GatewayBind) Clients() []netip.AddrPort {
	var all []netip.AddrPort
	for _, at := range []model.Endpoint{b.APIServer, b.Connect} {
		if ip, err := netip.ParseAddr(at.Host); err == nil {
			all = append(all, netip.AddrPortFrom(ip, at.Port))
		}
	}
	return all
}

// PublicAddress returns the address for edges. It is invalid if the host is not an IP address.
func (b GatewayBind) PublicAddress() netip.AddrPort {
	ip, err := netip.ParseAddr(b.Public.Host)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, b.Public.Port)
}

type bound struct {
	name string
	at   *model.Endpoint
}

func (b *GatewayBind) listeners() []bound {
	return []bound{{publicListener, &b.Public}, {apiserverListener, &b.APIServer}, {connectListener, &b.Connect}}
}
