package controlchannel

import "time"

// Bounds are the bounds that tests make small.
type Bounds struct {
	Handshake, Unauthenticated, Message          time.Duration
	Openings, Public, PerAddress, PerNode, Calls int
	Known, PerTunnel, NodeStreams, TunnelCalls   int
	AddressCalls, OtherCalls                     int
	Fair                                         time.Duration
}

// NewBounded is New with other bounds; zero: the default.
func NewBounded(config Config, b Bounds) *Channel {
	all := defaultBounds()
	for _, x := range []struct {
		from int
		to   *int
	}{
		{b.Openings, &all.openings},
		{b.Public, &all.public},
		{b.PerAddress, &all.perAddress},
		{b.PerNode, &all.perNode},
		{b.Calls, &all.calls.Burst},
		{b.AddressCalls, &all.addressCalls.Burst},
		{b.OtherCalls, &all.otherCalls.Burst},
		{b.Known, &config.EdgeConnections},
		{b.PerTunnel, &all.perTunnel},
		{b.NodeStreams, &all.nodeStreams},
		{b.TunnelCalls, &all.tunnelCalls.Burst},
	} {
		if x.from > 0 {
			*x.to = x.from
		}
	}
	// slower in the same ratio as the burst is smaller: a busy machine makes fewer calls than are allowed
	if b.TunnelCalls > 0 {
		all.tunnelCalls.Every *= 20
	}
	if b.Handshake > 0 {
		all.handshake = b.Handshake
	}
	if b.Message > 0 {
		all.message = b.Message
	}
	if b.Fair > 0 {
		all.fair = b.Fair
	}
	if b.Unauthenticated > 0 {
		all.unauthenticated = b.Unauthenticated
	}
	return newChannel(config, all)
}

// Held returns how many connections are counted anywhere.
func (c *Channel) Held() int {
	d := c.acceptor
	held := d.openings.Used() + d.known.Used() + d.trusted.Used()
	for _, p := range []pools{d.public, d.inside} {
		held += p.handshakes.Used() + p.unauthenticated.Used()
	}
	return held
}

// Running returns how many calls of callers with a certificate are counted.
func (c *Channel) Running() int { return c.rules.byNode.Used() + c.rules.byInternal.Used() }

// ForgetTunnels makes all edges share one group of slots, as if there were no tunnels.
func (c *Channel) ForgetTunnels() { c.acceptor.group = func(*caller) string { return "" } }
