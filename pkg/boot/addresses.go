package boot

import (
	"net"
	"net/netip"
	"slices"
)

const (
	// maxAddresses is the limit of the server.
	maxAddresses = 32
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

// addresses returns the addresses that may identify the machine, in order. The result is the same as long as
// nothing changes.
func addresses(all []netInterface) []string {
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
	for _, ip := range found[:min(len(found), maxAddresses)] {
		words = append(words, ip.String())
	}
	return words
}
