package netns

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	segmentBridge = "machines" // the switch of a segment, in its router
	segmentDevice = "eth0"     // of a machine
	routerHost    = 254        // the router's address in the segment
)

// Segment is one network of machines behind a router. The router forwards packets between the machines, the networks
// that they route, and the segments to which it is connected.
type Segment struct {
	Router *Namespace
	Prefix netip.Prefix // a /24

	name string

	mu       sync.Mutex
	machines []*Namespace
	uplinks  int          // how many segments reach this one
	balanced []netip.Addr // machines that have a mark: their indices and one
}

// NewSegment makes the namespace <name>-router, with a switch on which the router has an address.
func NewSegment(ctx context.Context, name string, prefix netip.Prefix) (*Segment, error) {
	router, err := newNamespace(ctx, name+"-router")
	if err != nil {
		return nil, err
	}
	s := &Segment{Router: router, Prefix: prefix, name: name}
	err = router.IP(ctx, "link", "add", segmentBridge, "type", "bridge")
	if err == nil {
		err = router.AddAddress(ctx, segmentBridge, netip.PrefixFrom(s.Gateway(), prefix.Bits()))
	}
	if err == nil {
		err = router.SetSysctl("net/ipv4/ip_forward", "1")
	}
	if err == nil { // Route distributes connections, not pairs of addresses
		err = router.SetSysctl("net/ipv4/fib_multipath_hash_policy", "1")
	}
	if err != nil {
		s.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return s, nil
}

// Gateway returns the router's address in the segment.
func (s *Segment) Gateway() netip.Addr { return AddressAt(s.Prefix, routerHost) }

// AddMachine makes the namespace <name of the segment>-<name>, whose packets to other networks go to the router. host
// is the last byte of its address, and unique in the segment.
func (s *Segment) AddMachine(ctx context.Context, name string, host int) (*Namespace, error) {
	machine, err := newNamespace(ctx, s.name+"-"+name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.machines = append(s.machines, machine)
	s.mu.Unlock()
	if err := plug(ctx, cable{
		machine, segmentDevice, IPv4.prefixes(netip.PrefixFrom(AddressAt(s.Prefix, host), s.Prefix.Bits())), s.Router,
		segmentBridge, "port" + strconv.Itoa(host),
	}); err != nil {
		return nil, err
	}
	return machine, machine.IP(ctx, "route", "add", "default", "via", s.Gateway().String())
}

// RemoveMachine removes a machine of the segment, with the processes that run in it.
func (s *Segment) RemoveMachine(ctx context.Context, machine *Namespace) {
	RemoveNamespace(ctx, machine.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines = slices.DeleteFunc(s.machines, func(other *Namespace) bool { return other == machine })
}

// Route makes the router send packets for a prefix to machines, to each connection's own one of them. Without machines
// the router rejects them.
func (s *Segment) Route(ctx context.Context, prefix netip.Prefix, via ...netip.Addr) error {
	if len(via) == 0 {
		return s.Router.IP(ctx, "route", "replace", "unreachable", prefix.String())
	}
	args := []string{"route", "replace", prefix.String()}
	for _, address := range via {
		args = append(args, "nexthop", "via", address.String())
	}
	return s.Router.IP(ctx, args...)
}

// firstTable is the routing table of the router for the first machine to which it balances connections.
const firstTable = 100

// Balance makes the router send connections to offered addresses to machines, as the load balancers of clouds do: each
// new connection to one of them at random, and all of its packets to the same one, even if that is no longer among the
// machines. It replaces what earlier calls have set. nft is the program that sets the rules.
func (s *Segment) Balance(ctx context.Context, nft string, machines map[netip.Addr][]netip.Addr) error {
	rules := &strings.Builder{}
	for _, address := range slices.SortedFunc(maps.Keys(machines), netip.Addr.Compare) {
		var choices []string
		for i, machine := range machines[address] {
			mark, err := s.mark(ctx, machine)
			if err != nil {
				return err
			}
			choices = append(choices, fmt.Sprintf("%d : %d", i, mark))
		}
		if len(choices) > 0 {
			fmt.Fprintf(rules, "\t\tip daddr %s ct state new ct mark set numgen random mod %d map { %s }\n", address,
				len(choices), strings.Join(choices, ", "))
		}
	}
	return s.Router.filter(ctx, nft, fmt.Sprintf(`
table ip balancer
delete table ip balancer
table ip balancer {
	chain prerouting {
		type filter hook prerouting priority mangle
%s		ip daddr %s meta mark set ct mark
	}
}
`, rules, OfferedPrefix))
}

// mark returns the mark of packets for a machine, and makes the router send packets with it there.
func (s *Segment) mark(ctx context.Context, machine netip.Addr) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.balanced, machine); i >= 0 {
		return i + 1, nil
	}
	mark := len(s.balanced) + 1
	table := strconv.Itoa(firstTable + mark)
	if err := s.Router.IP(ctx, "route", "add", "default", "via", machine.String(), "table", table); err != nil {
		return 0, err
	}
	if err := s.Router.IP(ctx, "rule", "add", "fwmark", strconv.Itoa(mark), "lookup", table); err != nil {
		return 0, err
	}
	s.balanced = append(s.balanced, machine)
	return mark, nil
}

// Close removes the namespaces of the segment.
func (s *Segment) Close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, machine := range slices.Backward(s.machines) {
		RemoveNamespace(ctx, machine.Name)
	}
	s.machines = nil
	RemoveNamespace(ctx, s.Router.Name)
}

// SetSysctl sets a parameter of the namespace's network, such as net/ipv4/ip_forward.
func (n *Namespace) SetSysctl(name, value string) error {
	err := n.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644) })
	if err != nil {
		return fmt.Errorf("setting %s of %s: %w", name, n.Name, err)
	}
	return nil
}

const (
	offeredBridge = "public" // the network of segments that reach another one, in its router
	uplinkDevice  = "uplink" // of a router that reaches another segment
)

var (
	// OfferedPrefix has the addresses that a segment offers to other segments. Route makes one of them work.
	OfferedPrefix = netip.MustParsePrefix("172.31.1.0/24")
	uplinkPrefix  = netip.MustParsePrefix("172.31.0.0/24")
)

// Reach lets the machines of a segment, and the networks behind them, open connections to the addresses that another
// segment offers, and to no other of its addresses. The other segment can open none in return. nft is the program that
// sets the rules.
func (s *Segment) Reach(ctx context.Context, other *Segment, nft string) error {
	host, err := other.nextUplink(ctx, nft)
	if err != nil {
		return err
	}
	if err := plug(ctx, cable{
		s.Router, uplinkDevice, IPv4.prefixes(netip.PrefixFrom(AddressAt(uplinkPrefix, host), uplinkPrefix.Bits())),
		other.Router, offeredBridge, "uplink" + strconv.Itoa(host),
	}); err != nil {
		return err
	}
	if err := s.Router.IP(ctx, "route", "add", OfferedPrefix.String(), "via",
		AddressAt(uplinkPrefix, routerHost).String()); err != nil {
		return err
	}
	return s.Router.filter(ctx, nft, fmt.Sprintf(`
table inet uplink {
	chain source { type nat hook postrouting priority srcnat; oifname %[1]q masquerade; }
	chain input { type filter hook input priority filter; iifname %[1]q ct state new drop; }
	chain forward { type filter hook forward priority filter; iifname %[1]q ct state new drop; }
}
`, uplinkDevice))
}

// nextUplink returns the number of the next segment that reaches this one. The first makes the network between them.
func (s *Segment) nextUplink(ctx context.Context, nft string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uplinks++
	if s.uplinks > 1 {
		return s.uplinks, nil
	}
	if err := s.Router.IP(ctx, "link", "add", offeredBridge, "type", "bridge"); err != nil {
		return 0, err
	}
	own := netip.PrefixFrom(AddressAt(uplinkPrefix, routerHost), uplinkPrefix.Bits())
	if err := s.Router.AddAddress(ctx, offeredBridge, own); err != nil {
		return 0, err
	}
	return s.uplinks, s.Router.filter(ctx, nft, fmt.Sprintf(`
table inet public {
	chain input { type filter hook input priority filter; iifname %[1]q ct state new drop; }
	chain output { type filter hook output priority filter; oifname %[1]q ct state new drop; }
	chain forward {
		type filter hook forward priority filter
		oifname %[1]q ct state new drop
		iifname %[1]q ip daddr != %[2]s ct state new drop
		iifname %[1]q meta nfproto ipv6 drop
	}
}
`, offeredBridge, OfferedPrefix))
}

// filter adds rules to the namespace's network.
func (n *Namespace) filter(ctx context.Context, nft, rules string) error {
	cmd := n.Command(ctx, nft, "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("setting the rules of %s: %w: %s", n.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Behind connects the router of a segment to the workload network, as a router that translates addresses: the machines
// of the segment reach the public port of the gateways and nothing else, and nothing reaches them. Several segments may
// have the same addresses. nft is the program that sets the rules.
func (n *Network) Behind(ctx context.Context, s *Segment, nft string) error {
	if err := n.plugSite(ctx, s.Router, n.nextSiteAddress()); err != nil {
		return err
	}
	var gateways []string
	for _, address := range n.PublicAddresses() {
		if address.Is4() {
			gateways = append(gateways, address.String())
		}
	}
	return s.Router.filter(ctx, nft, fmt.Sprintf(`
table inet uplink {
	chain source { type nat hook postrouting priority srcnat; oifname %[1]q masquerade; }
	chain input { type filter hook input priority filter; iifname %[1]q ct state new drop; }
	chain output { type filter hook output priority filter; oifname %[1]q ct state new drop; }
	chain forward {
		type filter hook forward priority filter
		iifname %[1]q ct state new drop
		oifname %[1]q ip daddr { %[2]s } tcp dport %[3]d accept
		oifname %[1]q drop
	}
}
`, siteDevice, strings.Join(gateways, ", "), PublicPort))
}
