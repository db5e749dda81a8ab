package controlchannel

import (
	"fmt"
	"net"
	"time"
)

// acquireSlot takes a slot for a connection whose handshake is finished, and returns a function that releases it.
func (d *acceptor) acquireSlot(client *caller, raw net.Conn, now time.Time) (release func(), err error) {
	switch client.class {
	case edges:
		if release = d.known.Join(client.node, d.group(client), d.displace(raw, errTunnels)); release == nil {
			return nil, fmt.Errorf("%w connections of one certificate or tunnel", errTooMany)
		}
		if client.public {
			d.sources.record(client.Addr, client.node, now)
		}
	case internal:
		if release = d.trusted.Take(client.node); release == nil {
			return nil, fmt.Errorf("%w connections of one certificate", errTooMany)
		}
	default:
		allowance := 0
		if client.public {
			allowance = d.allowance(client)
		}
		if release = d.pools(client).unauthenticated.Join(client.Addr, allowance, d.displace(raw,
			errNetwork)); release == nil {
			return nil, fmt.Errorf("%w connections without a certificate", errTooMany)
		}
	}
	return release, nil
}
