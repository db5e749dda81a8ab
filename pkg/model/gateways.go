package model

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

const (
	// MaxGateways bounds the number of gateways, because edges may keep reverse tunnels to each of them.
	MaxGateways = 100
	// DefaultGatewaysPerTunnel is Installation.GatewaysPerTunnel by default: two of three may be lost at the same time.
	DefaultGatewaysPerTunnel = 3
	// TunnelsPerWorker is how many reverse tunnels an edge keeps to each worker of a gateway, for each name of its
	// workload cluster: if one breaks, the other serves while the edge dials again. Envoy assigns them to the workers
	// in turn, so that after losses one worker may have none: see pkg/tunnels.
	TunnelsPerWorker = 2
	// MaxWorkers bounds the worker threads of a gateway. Every edge keeps reverse tunnels for each, and a machine
	// cannot use more workers than it has cores.
	MaxWorkers = 64
	// MaxLanes bounds the lanes of an edge: together they have 512 reverse tunnels to each worker of a gateway.
	MaxLanes = 8
	// DefaultLanes is Installation.Lanes by default: 64 connections of clients through one worker share no TCP connection.
	DefaultLanes = 5
	// firstLane is how many reverse tunnels the first lane has.
	firstLane = 4
	// tunnelsPerGateway is how many reverse tunnels a gateway has at most if edges have lanes: all of these return within
	// 20 s of an outage at the usual rate. A gateway admits several times as many (package agent).
	tunnelsPerGateway = 20_000
	// MaxHandshakes bounds how many reverse tunnels a gateway accepts per second. No machine can accept more.
	MaxHandshakes = 1_000_000
	// maxZone is the maximum length of a value of a label of Kubernetes.
	maxZone = 63
	// replicaPart is replaced by the number of a replica in a pattern of addresses.
	replicaPart = "{i}"
)

// Validate checks the whole installation and joins all errors.
func (i Installation) Validate() error {
	return errors.Join(i.ValidateShared(), ValidateGateways(i.Gateways))
}

// ValidateShared checks everything except the gateways, for callers that do not know them yet. It joins all errors.
func (i Installation) ValidateShared() error {
	errs := []error{i.Domain.Validate()}
	if err := i.Public.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("public address of the gateways: %w", err))
	}
	if err := i.Control.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("address of the xds-server: %w", err))
	}
	if i.Workers < 0 || i.Workers > MaxWorkers {
		errs = append(
			errs, fmt.Errorf("number of workers of a gateway: %d is not from 1 to %d, or 0 for one", i.Workers, MaxWorkers),
		)
	}
	if i.GatewaysPerTunnel < 0 || i.GatewaysPerTunnel > MaxGateways {
		errs = append(
			errs,
			fmt.Errorf("gateways of a tunnel: %d is not from 1 to %d, or 0 for all", i.GatewaysPerTunnel, MaxGateways),
		)
	}
	if i.Handshakes < 0 || i.Handshakes > MaxHandshakes {
		errs = append(
			errs,
			fmt.Errorf(
				"tunnels that a gateway opens in a second: %d is not from 1 to %d, or 0 for the default", i.Handshakes,
				MaxHandshakes,
			),
		)
	}
	if i.Lanes < 0 || i.Lanes > MaxLanes {
		errs = append(errs, fmt.Errorf("lanes of each edge: %d is not from 0 to %d", i.Lanes, MaxLanes))
	}
	if i.AccessLog != "" && i.AccessLog != AccessLogFailed && i.AccessLog != AccessLogAll {
		errs = append(
			errs, fmt.Errorf("access log: %q is invalid: must be %s, %s or empty", i.AccessLog, AccessLogFailed, AccessLogAll),
		)
	}
	return errors.Join(errs...)
}

// ValidateGateways checks the gateways of an installation and joins all errors. There must be between one and
// MaxGateways gateways.
func ValidateGateways(gateways []Gateway) error {
	if n := len(gateways); n == 0 || n > MaxGateways {
		return gatewayCount(n)
	}
	var errs []error
	seen := map[string]bool{}
	for _, g := range gateways {
		errs = append(errs, ValidateGatewayName(g.Name))
		if seen[g.Name] {
			errs = append(errs, fmt.Errorf("gateway %s is named twice", g.Name))
		}
		seen[g.Name] = true
		if len(gateways) > 1 {
			if err := g.Peer.Validate(); err != nil {
				errs = append(errs, fmt.Errorf("peer address of %s, which several gateways need: %w", g.Name, err))
			}
		}
		if err := ValidateZone(g.Zone); err != nil {
			errs = append(errs, fmt.Errorf("zone of %s: %w", g.Name, err))
		}
		if g.Public != (Endpoint{}) {
			if err := g.Public.Validate(); err != nil {
				errs = append(errs, fmt.Errorf("public address of %s: %w", g.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ValidateZone returns an error for a zone that is no value of a label of Kubernetes; empty: there is none.
func ValidateZone(zone string) error {
	if len(zone) > maxZone || strings.ContainsFunc(zone, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%.100q is not a value of a label of Kubernetes", zone)
	}
	return nil
}

func gatewayCount(n int) error {
	if n == 0 {
		return errors.New("no gateway is configured")
	}
	return fmt.Errorf("there are %d gateways, at most %d are allowed", n, MaxGateways)
}

// WorkerCount returns how many workers each gateway has: at least one.
func (i Installation) WorkerCount() int { return max(i.Workers, 1) }

// Tunnels returns how many reverse tunnels an edge of a workload cluster keeps to each gateway. Each name is a
// separate Envoy cluster of the gateway, and its connections use reverse tunnels that no other Envoy cluster can use,
// so each name needs its own. Their number is rounded up to a power of two: changing it replaces all reverse tunnels
// of the edge, and with rounding most new names do not change it.
func (i Installation) Tunnels(w WorkloadCluster) int {
	names := len(w.Names()) + w.Forwards
	if w.Network != nil {
		names++ // the Envoy cluster for apiservers
	}
	return TunnelsPerEdge(i.WorkerCount(), names)
}

// LanesFor returns how many lanes an edge of a workload cluster has in a fleet of this many edges; 0: it is not known,
// and it has none. These are at most Lanes, and fewer where a gateway would have more than tunnelsPerGateway reverse
// tunnels if all edges had as many as this one: one of a workload cluster with several names has more usual ones.
func (i Installation) LanesFor(edges int, w WorkloadCluster) int {
	if edges == 0 {
		return 0
	}
	if n := len(i.Gateways); i.GatewaysPerTunnel > 0 && i.GatewaysPerTunnel < n {
		edges = (edges*i.GatewaysPerTunnel + n - 1) / n
	}
	each := tunnelsPerGateway / (edges * i.WorkerCount()) // of an edge, to each worker
	usual, lanes := i.Tunnels(w)/i.WorkerCount(), 0
	for lanes < i.Lanes && TunnelsInLanes(lanes+1) <= each-usual {
		lanes++
	}
	return lanes
}

// TunnelsInLanes returns how many reverse tunnels the first lanes of an edge have together to each worker of a gateway.
// Each lane doubles their number, so few lanes are enough for few clients and for many.
func TunnelsInLanes(lanes int) int {
	if lanes <= 0 {
		return 0
	}
	return firstLane << (lanes - 1)
}

// TunnelsInLane returns how many reverse tunnels one lane of an edge has to each worker of a gateway, from lane 1. Each
// carries one connection of a client, and ends with it.
func TunnelsInLane(lane int) int { return TunnelsInLanes(lane) - TunnelsInLanes(lane-1) }

// TunnelsPerEdge is Tunnels for a number of workers of a gateway and a number of names of a workload cluster.
func TunnelsPerEdge(workers, names int) int {
	return TunnelsPerWorker * max(workers, 1) << bits.Len(uint(max(names, 1)-1))
}

// GatewayAddresses returns the IP addresses at which edges and other gateways reach the gateways. With ReplicaAddress
// these are the addresses of every gateway that the installation may ever have, so that scaling does not change them.
func (i Installation) GatewayAddresses() []netip.Addr {
	all := []Endpoint{i.Public}
	for _, g := range i.Gateways {
		all = append(all, g.Public, g.Peer)
	}
	if i.ReplicaAddress == "" {
		return Addresses(all...)
	}
	for n := range MaxGateways {
		if e, err := i.ReplicaAddress.Of(fmt.Sprintf("gateway-%d", n)); err == nil {
			all = append(all, e)
		}
	}
	return Addresses(all...)
}

// GatewayPublic returns the address at which edges reach a gateway.
func (i Installation) GatewayPublic(g Gateway) Endpoint {
	if g.Public != (Endpoint{}) {
		return g.Public
	}
	return i.Public
}

// ReplicaAddress is a host:port with {i} in place of a replica's number, such as gateway-{i}.example.com:443. The zero
// value means no address.
type ReplicaAddress string

// Of returns the address of a replica. It returns an error if ValidateGatewayName rejects the name, and the zero
// Endpoint if a is empty.
func (a ReplicaAddress) Of(gateway string) (Endpoint, error) {
	if a == "" {
		return Endpoint{}, nil
	}
	if !strings.Contains(string(a), replicaPart) {
		return Endpoint{}, fmt.Errorf(
			"address %q has no %s in place of the replica's number, so all replicas would have the same address", a, replicaPart,
		)
	}
	number, err := gatewayNumber(gateway)
	if err != nil {
		return Endpoint{}, err
	}
	return ParseEndpoint(strings.ReplaceAll(string(a), replicaPart, strconv.Itoa(number)))
}

// gatewayNumber returns the number in the name of a gateway.
func gatewayNumber(name string) (int, error) {
	if err := ValidateGatewayName(name); err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimPrefix(name, "gateway-"))
}
