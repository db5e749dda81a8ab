// Package multiplex makes the HTTP/2 options of reverse tunnels: how many streams share one, the windows of each stream
// and of all, the pings, and when an unused one is closed. Envoy fills one reverse tunnel before it uses the next. The
// package does not know what else Envoy clusters and listeners consist of.
package multiplex

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

const (
	// downloadWindow is the window of a stream to a gateway. Envoy returns half of it at a time, so at a round trip of
	// 50 ms it allows 90 MB/s per stream. It is also how much of a gateway's memory a client holds that stops reading.
	// uploadWindow is the window of the other direction, held in an edge by an apiserver that stops reading: 18 MB/s
	// at 50 ms.
	downloadWindow = 10 << 20
	uploadWindow   = 2 << 20
	// streamsPerTunnel lets the two reverse tunnels to a gateway carry 1,000 connections. Envoy uses the next reverse
	// tunnel when one is full.
	streamsPerTunnel = 512
	// stalledReaders is how many clients may stop reading before the others in their reverse tunnel stall. The sum of
	// all stream windows would exceed HTTP/2's maximum and a gateway's memory. This limits one reverse tunnel to 1.25
	// GB of it.
	stalledReaders = 128
	downloads      = stalledReaders * downloadWindow
	uploads        = streamsPerTunnel * uploadWindow

	// http2Ping detects a dead reverse tunnel that is in use. Envoy has no other way to detect it, and would keep it
	// for ever. It is both interval and timeout: a black hole is detected within 4 s, and the next reverse tunnel is
	// used.
	http2Ping = 2 * time.Second
	// peerPing is the interval of pings between gateways. The kernel detects a black hole by them.
	peerPing = time.Second

	// endedStreams is how many streams the other side may reset, at once and per second. A gateway resets the stream of
	// each client by CONNECT that disconnects first. By default Envoy closes an HTTP/2 connection, with all that share
	// it, after 1,000 and further 33 per second. That is for clients that nobody knows; a gateway is known.
	endedStreams = 1 << 32

	// UnusedAfter bounds how long a reverse tunnel without connections of clients is pinged like one in use, which costs
	// 20 MB a day. Another reverse tunnel in its place, and its first use, cost as much as these pings in 40 s.
	UnusedAfter = time.Minute
)

// Gateway returns the HTTP/2 options of a gateway's side of a reverse tunnel, with windows for downloads.
func Gateway() *corev3.Http2ProtocolOptions { return options(downloadWindow, downloads) }

// Edge returns the HTTP/2 options of an edge's side of a reverse tunnel, with windows for uploads. Any number of
// clients may disconnect: see endedStreams.
func Edge() *corev3.Http2ProtocolOptions {
	o := options(uploadWindow, uploads)
	o.StreamResetBurst, o.StreamResetRate = wrapperspb.UInt64(endedStreams), wrapperspb.UInt64(endedStreams)
	return o
}

// Peer returns the HTTP/2 options of a gateway's connections to another one.
func Peer() *corev3.Http2ProtocolOptions {
	o := Gateway()
	o.ConnectionKeepalive.Interval = durationpb.New(peerPing)
	return o
}

// PingOften has an Envoy cluster with explicit HTTP/2 options ping as often as Peer. It leaves any other as it is.
func PingOften(c *clusterv3.Cluster) {
	options := &upstreamhttpv3.HttpProtocolOptions{}
	packed := c.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols]
	pings := func() *corev3.KeepaliveSettings {
		return options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
	}
	if packed.UnmarshalTo(options) != nil || pings() == nil {
		return
	}
	pings().Interval = durationpb.New(peerPing)
	c.TypedExtensionProtocolOptions[typed.HTTPProtocols] = typed.Pack(options)
}

// Shared returns the options of a client of all gateways. A window of uploadWindow is enough in one network.
func Shared() *corev3.Http2ProtocolOptions {
	o := options(uploadWindow, uploads)
	o.AllowConnect = false
	return o
}

func options(stream, connection uint32) *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		AllowConnect:                true,
		MaxConcurrentStreams:        wrapperspb.UInt32(streamsPerTunnel),
		InitialStreamWindowSize:     wrapperspb.UInt32(stream),
		InitialConnectionWindowSize: wrapperspb.UInt32(connection),
		ConnectionKeepalive:         http2Keepalive(http2Ping),
	}
}

func http2Keepalive(every time.Duration) *corev3.KeepaliveSettings {
	return &corev3.KeepaliveSettings{Interval: durationpb.New(every), Timeout: durationpb.New(every)}
}

// CloseUnused changes an Envoy cluster of a tunnel so that a reverse tunnel is closed once it has carried no connection
// for a minute. Its edge then dials another, which has no HTTP/2 pings until it is used. CloseUnused returns false if
// nothing has changed. A gateway's agent does this, not the xds-server: an Envoy cluster that changes while it is in
// use loses its reverse tunnels, and agents of versions before would reject the change.
func CloseUnused(c *clusterv3.Cluster) bool {
	options := &upstreamhttpv3.HttpProtocolOptions{}
	if c.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols].UnmarshalTo(options) != nil ||
		options.GetCommonHttpProtocolOptions() != nil {
		return false
	}
	options.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(UnusedAfter)}
	c.TypedExtensionProtocolOptions[typed.HTTPProtocols] = typed.Pack(options)
	return true
}
