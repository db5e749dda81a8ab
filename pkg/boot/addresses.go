package boot

import (
	"net"
	"net/netip"
	"slices"
)

const (
	// maxAddresses is what the server keeps.
	maxAddresses = 32
	// servicesInterface is where kube-proxy keeps the IP address of every Service: none of them is the machine's own.
	servicesInterface = "kube-ipvs0"
)

// netInterface is a network interface with its addresses.
type netInterface struct {
	net.Interface
	addresses []net.Addr
}

// interfaces returns those of this machine, as far as they can be read.
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

// addresses are those by which others may know the machine, in order. The same Machine says the same again as long as nothing changes.
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
