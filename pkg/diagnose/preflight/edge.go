// Package preflight tests what Fairlead needs of a network and of a management cluster, before there is an edge or an
// installation. Input: the content of a bootstrap file, or a client of the management cluster. Output: results in the
// form of pkg/diagnose/check. It changes nothing, and uses up no token. It does not know how results are shown.
package preflight

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// The names of the tests of a network.
const (
	TestProxy   check.ID = "proxy"
	TestName    check.ID = "dns"
	TestPort    check.ID = "port"
	TestTLS     check.ID = "tls"
	TestClock   check.ID = "clock"
	TestPackets check.ID = "packets"
	TestIdle    check.ID = "idle"
)

const (
	lookupTime = 5 * time.Second
	// connectTime exceeds the longest dial over all addresses, 10 s, and a handshake.
	connectTime = 20 * time.Second
	answerTime  = 10 * time.Second
	// MaxIdle is the longest time for which an edge leaves its connections without a byte (10 s), and a second more. The
	// xds-server sends a byte after 12 s.
	MaxIdle = 11 * time.Second
	// frameSize is the largest frame that every HTTP/2 server accepts. It fills several packets of any usual MTU.
	frameSize = 16 << 10
	// paddingFrame is a type that HTTP/2 does not define: a server must discard such frames (RFC 9113, section 5.5).
	paddingFrame http2.FrameType = 0xfa
)

// Gateways are the gateways of an installation, as a bootstrap file describes them, or the objects of the installation.
type Gateways struct {
	Addresses []model.Endpoint
	Domain    model.TunnelDomain
	CA        certs.Bundle
	Proxy     dial.Proxy
	Idle      time.Duration // how long a connection stays without a byte; 0: it is not tested
	Now       func() time.Time
	// FromObjects reports that Domain and CA are from the objects of the installation, and Addresses from a user.
	FromObjects bool
}

// Test tests the way of an edge from this machine to the gateways.
func (g *Gateways) Test(ctx context.Context) []check.Result {
	all := []check.Result{g.proxy(ctx)}
	for _, e := range g.Addresses {
		one := &dial.Dialer{Addresses: []model.Endpoint{e}, Proxy: g.Proxy}
		if !one.Proxied() { // otherwise the proxy resolves the name
			all = append(all, Name(ctx, e.Host))
		}
		port := Port(ctx, one, e)
		all = append(all, port)
		if port.Status != check.OK {
			continue
		}
		all = append(all, g.Session(ctx, one, e)...)
	}
	return all
}

// proxy reports which proxy is used.
func (g *Gateways) proxy(ctx context.Context) check.Result {
	return check.Measure(ctx, TestProxy, "HTTP proxy", lookupTime, func(context.Context) check.Outcome {
		d := &dial.Dialer{Addresses: g.Addresses, Proxy: g.Proxy}
		switch {
		case g.Proxy.String() == "":
			return passed("none: neither --proxy nor HTTPS_PROXY is set")
		case !d.Proxied():
			return passed("%s is not used: all addresses are exceptions of NO_PROXY", g.Proxy)
		}
		return passed("%s; set the same --proxy for edge-agent, unless it has the same environment", g.Proxy)
	})
}

// Name resolves a host.
func Name(ctx context.Context, host string) check.Result {
	return check.Measure(ctx, TestName, "name of the gateways", lookupTime, func(ctx context.Context) check.Outcome {
		if _, err := netip.ParseAddr(host); err == nil {
			return passed("%s is an IP address", host)
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return check.Outcome{
				Status: check.Broken, Detail: host + " does not resolve: " + explain.Text(err),
				Cause: "the record is missing, or the DNS of this network does not know it",
				Cure:  "create the record, or use the address of the gateways instead of a name",
			}
		}
		var all []string
		for _, a := range found {
			all = append(all, a.Unmap().String())
		}
		return passed("%s is %s", host, strings.Join(all, ", "))
	})
}

// Port opens a TCP connection to an address.
func Port(ctx context.Context, d *dial.Dialer, to model.Endpoint) check.Result {
	const title = "public port of the gateways"
	return check.Measure(ctx, TestPort, title, connectTime, func(ctx context.Context) check.Outcome {
		conn, err := d.DialContext(ctx)
		if err != nil {
			return check.Outcome{
				Status: check.Broken, Detail: explain.Text(err),
				Cause: "a firewall, the load balancer or the proxy does not pass connections, or the gateways do not run",
				Cure:  fmt.Sprintf("allow TCP to %s from this network, and check that the gateways are ready", to),
			}
		}
		defer func() { _ = conn.Close() }()
		return passed("%s accepts connections", to)
	})
}

// Session tests TLS with an address, and what needs a connection with TLS.
func (g *Gateways) Session(ctx context.Context, d *dial.Dialer, to model.Endpoint) []check.Result {
	var conn net.Conn
	var state tls.ConnectionState
	const title = "TLS with the gateways"
	handshake := check.Measure(ctx, TestTLS, title, connectTime, func(ctx context.Context) check.Outcome {
		var err error
		if conn, state, err = dial.Handshake(ctx, d, g.Domain, g.CA); err != nil {
			return g.refused(to, err)
		}
		source := "in the bootstrap file"
		if g.FromObjects {
			source = "of the installation"
		}
		return passed("the certificate of %s is of the CA %s: no TLS inspection", g.Domain.Control(), source)
	})
	all := []check.Result{handshake}
	if conn == nil {
		return all
	}
	defer func() { _ = conn.Close() }()
	all = append(all, g.clock(ctx, state), Packets(ctx, conn))
	if g.Idle > 0 && all[len(all)-1].Status == check.OK {
		all = append(all, idle(ctx, conn, g.Idle))
	}
	return all
}

// refused is the outcome of a handshake that has failed.
func (g *Gateways) refused(to model.Endpoint, err error) check.Outcome {
	o := check.Outcome{
		Status: check.Broken, Detail: explain.Text(err),
		Cause: "a device inspects TLS or closes it, the file is of another installation, or a clock is wrong",
		Cure: fmt.Sprintf("exempt %s from TLS inspection; compare the clocks; get a new bootstrap file with fairlead join",
			to),
	}
	if g.FromObjects {
		o.Cause = "a load balancer ends TLS, a device inspects or closes it, the address is of another installation, or a " +
			"clock is wrong"
		o.Cure = fmt.Sprintf("have load balancers forward TCP to %s unchanged; exempt it from TLS inspection; compare the "+
			"clocks", to)
	}
	return o
}

// clock compares the clock with the certificate, which the handshake has verified.
func (g *Gateways) clock(ctx context.Context, state tls.ConnectionState) check.Result {
	return check.Measure(ctx, TestClock, "clock of this machine", lookupTime, func(context.Context) check.Outcome {
		leaf := state.PeerCertificates[0]
		return passed(
			"%s is in the validity of the gateways' certificate, %s to %s", utc(g.Now()), utc(leaf.NotBefore),
			utc(leaf.NotAfter),
		)
	})
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func passed(format string, args ...any) check.Outcome {
	return check.Outcome{Status: check.OK, Detail: fmt.Sprintf(format, args...)}
}

// Packets sends more than fits into one packet to an HTTP/2 server, and waits for an answer.
func Packets(ctx context.Context, conn net.Conn) check.Result {
	return check.Measure(ctx, TestPackets, "large packets", answerTime, func(ctx context.Context) check.Outcome {
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		framer := http2.NewFramer(conn, conn)
		_, err := io.WriteString(conn, http2.ClientPreface)
		if err == nil {
			err = framer.WriteSettings()
		}
		if err == nil {
			err = framer.WriteRawFrame(paddingFrame, 0, 0, make([]byte, frameSize))
		}
		if err == nil {
			err = ping(framer)
		}
		if err != nil {
			return check.Outcome{
				Status: check.Broken, Detail: fmt.Sprintf("%d bytes at once have no answer: %s", frameSize, explain.Text(err)),
				Cause: "a network on the path has a smaller MTU and drops large packets, or a device allows only handshakes",
				Cure: "set the MTU of this machine to that of the path, or let ICMP \"fragmentation needed\" and \"packet too " +
					"big\" pass",
			}
		}
		return passed("%d bytes arrive at once, from here to the gateways", frameSize)
	})
}

// ping sends a PING, and reads until its acknowledgement. The deadline is that of the connection.
func ping(framer *http2.Framer) error {
	if err := framer.WritePing(false, [8]byte{}); err != nil {
		return err
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				return nil
			}
			err = framer.WritePing(true, f.Data)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			err = fmt.Errorf("the xds-server closes the connection: %s", f.ErrCode)
		}
		if err != nil {
			return err
		}
	}
}

// idle leaves a connection without a byte, and then expects an answer on it.
func idle(ctx context.Context, conn net.Conn, wait time.Duration) check.Result {
	return check.Measure(ctx, TestIdle, "idle connection", wait+answerTime, func(ctx context.Context) check.Outcome {
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if err := ping(http2.NewFramer(conn, conn)); err != nil {
			return check.Outcome{
				Status: check.Broken, Detail: fmt.Sprintf("no answer after %s without a byte: %s", wait, explain.Text(err)),
				Cause: "a load balancer, firewall or NAT drops idle connections sooner than edges send something (10 s)",
				Cure:  "raise its idle timeout to a minute or more",
			}
		}
		return passed("a connection without a byte for %s works; edges send one at least every 10 s", wait)
	})
}
