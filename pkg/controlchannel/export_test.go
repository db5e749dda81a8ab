package controlchannel

import "time"

// Bounds are those that tests make small.
type Bounds struct {
	Handshake, Stranger                          time.Duration
	Openings, Public, PerAddress, PerNode, Calls int
	Known, PerTunnel, NodeStreams, TunnelCalls   int
	Fair                                         time.Duration
}

// NewBounded is New with some bounds that differ; zero: the usual one.
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
		{b.Known, &all.known},
		{b.PerTunnel, &all.perTunnel},
		{b.NodeStreams, &all.nodeStreams},
		{b.TunnelCalls, &all.tunnelCalls.Burst},
	} {
		if x.from > 0 {
			*x.to = x.from
		}
	}
	if b.TunnelCalls > 0 { // as much slower as the burst is smaller: a busy machine makes fewer calls than are allowed
		all.tunnelCalls.Every *= 20
	}
	if b.Handshake > 0 {
		all.handshake = b.Handshake
	}
	if b.Fair > 0 {
		all.fair = b.Fair
	}
	if b.Stranger > 0 {
		all.stranger = b.Stranger
	}
	return newChannel(config, all)
}

// Held is how many connections are counted anywhere.
func (c *Channel) Held() int {
	d := c.door
	held := d.openings.Used() + d.known.Used() + d.trusted.Used()
	for _, p := range []pools{d.public, d.inside} {
		held += p.handshakes.Used() + p.strangers.Used()
	}
	return held
}

// ForgetTunnels has all edges share one group of places, as if there were no tunnels.
func (c *Channel) ForgetTunnels() { c.door.group = func(*caller) string { return "" } }
