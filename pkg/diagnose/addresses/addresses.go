// Package addresses dials each address of a name. Input: addresses and a port. Output: which accept connections, which
// do not, and which are of a family that this machine does not have. It does not know whose addresses these are.
package addresses

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

// dialTime bounds one TCP connection: Cluster API's probe gives up after 5 s.
const dialTime = 3 * time.Second

// Dialled is the result of dialling addresses, in their order.
type Dialled struct {
	Open    []string // accept connections
	NoRoute []string // are of a family to which this machine has no route, while those of the other family accept
	Failed  []Failure
}

// Failure is an address that does not accept connections.
type Failure struct {
	Address string
	Err     error
}

// First returns the first error; nil: there is none.
func (d Dialled) First() error {
	if len(d.Failed) == 0 {
		return nil
	}
	return d.Failed[0].Err
}

// Dial opens a TCP connection to a port of each address, all at once, and closes it.
func Dial(
	ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), all []netip.Addr,
	port uint16,
) (d Dialled) {
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, address := range all {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			conn, err := dial(ctx, "tcp", netip.AddrPortFrom(address, port).String())
			if errs[i] = err; err == nil {
				_ = conn.Close()
			}
		})
	}
	group.Wait()
	for i, address := range all {
		switch to := netip.AddrPortFrom(address, port).String(); {
		case errs[i] == nil:
			d.Open = append(d.Open, to)
		case errors.Is(errs[i], syscall.ENETUNREACH) && !accepts(all, errs, address.Is4()) &&
			accepts(all, errs, !address.Is4()):
			d.NoRoute = append(d.NoRoute, to)
		default:
			d.Failed = append(d.Failed, Failure{to, errs[i]})
		}
	}
	return d
}

// Join returns addresses as a text.
func Join(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// accepts reports whether an address of a family accepts connections.
func accepts(all []netip.Addr, errs []error, is4 bool) bool {
	for i, a := range all {
		if errs[i] == nil && a.Is4() == is4 {
			return true
		}
	}
	return false
}
