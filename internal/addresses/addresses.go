// Package addresses lists the addresses of this machine that may identify it to others. It has no input; its output is
// sorted texts. It does not know which of them others can dial.
package addresses

import (
	"net"
	"net/netip"
	"slices"
)

const (
	// Max is how many addresses of one machine a report may have.
	Max = 32
	// servicesInterface is where kube-proxy keeps the IP addresses of all Services: none of them is the machine's own.
	servicesInterface = "kube-ipvs0"
)

// netInterface is a network interface with its addresses.
type netInterface struct {
	net.Interface
	addresses []net.Addr
}

// interfaces returns the network interfaces of this machine whose addresses can be read.
func interfaces() (all []netInterface) {
	found, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range found {
		if own, err := i.Addrs(); err == nil {
			all = append(all, netInterface{i, own})
		}
	}
	return all
}

// OfMachine returns up to 32 global unicast addresses of this machine, in order, without those of Services. The result
// is the same as long as nothing changes; it is nil if the kernel lists none.
func OfMachine() []string { return of(interfaces()) }

func of(all []netInterface) []string {
	var found []netip.Addr
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || i.Name == servicesInterface {
			continue
		}
		for _, a := range i.addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					found = append(found, ip.Unmap())
				}
			}
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	found = slices.Compact(found)
	var words []string
	for _, ip := range found[:min(len(found), Max)] {
		words = append(words, ip.String())
	}
	return words
}
