package controlchannel

import (
	"fmt"
	"net"
	"time"
)

// place takes a place for a connection whose handshake is done, and returns what gives it back.
func (d *door) place(who *caller, raw net.Conn, now time.Time) (leave func(), err error) {
	switch who.class {
	case edges:
		if who.public {
			d.sources.show(who.Addr, who.node, now)
		}
		if leave = d.known.Join(who.node, d.group(who), d.giveWay(raw, errTunnels)); leave == nil {
			return nil, fmt.Errorf("%w connections of one certificate or tunnel", errTooMany)
		}
	case insiders:
		if leave = d.trusted.Take(who.node); leave == nil {
			return nil, fmt.Errorf("%w connections of one certificate", errTooMany)
		}
	default:
		allowance := 0
		if who.public {
			allowance = d.allowance(who)
		}
		if leave = d.pools(who).strangers.Join(who.Addr, allowance, d.giveWay(raw, errNetwork)); leave == nil {
			return nil, fmt.Errorf("%w connections without a certificate", errTooMany)
		}
	}
	return leave, nil
}
