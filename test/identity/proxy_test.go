package identity

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	proxyPort     = 3128
	proxyUser     = "edge"
	proxyPassword = "open sesame: really"
)

// forwardProxy configures a real Envoy as a forward proxy that accepts CONNECT with a password.
//
//go:embed proxy.yaml
var forwardProxy string

// startProxy starts the proxy on its own machine, and returns its access log, which lists its connections.
func (d *doors) startProxy(t *testing.T, on *netns.Namespace) string {
	t.Helper()
	dir := t.TempDir()
	sum := sha1.Sum([]byte(proxyPassword)) // htpasswd's {SHA}, the only format that Envoy reads
	config := strings.NewReplacer(
		"@ADDRESS@", netns.ProxyAddress().String(), "@PORT@", fmt.Sprint(proxyPort), "@LOG@", filepath.Join(dir, "connected"),
		"@USERS@", proxyUser+":{SHA}"+base64.StdEncoding.EncodeToString(sum[:]),
	).Replace(forwardProxy)
	file := filepath.Join(dir, "proxy.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	proxy, err := proc.Start(proc.Spec{
		Name: "forward-proxy", Namespace: on, Program: d.EnvoyPath(), Log: d.LogFile("forward-proxy"),
		Args: []string{
			"-c",
			file,
			"--disable-hot-restart",
			"--concurrency",
			"1",
			"--log-level",
			"warning",
			"--file-flush-interval-msec",
			"200",
		},
	})
	must(t, err)
	t.Cleanup(proxy.Kill)
	must(t, proxy.WaitReady(t.Context(), patience, func(ctx context.Context) error {
		conn, err := on.DialContext(ctx, "tcp", netip.AddrPortFrom(netns.ProxyAddress(), proxyPort).String())
		if err == nil {
			_ = conn.Close()
		}
		return err
	}))
	return filepath.Join(dir, "connected")
}

func (d *doors) behindProxy(t *testing.T) {
	defer hold(t, 1)() // without a pause: the edge's token lives for minutes
	site, err := d.AddSecludedSite(t.Context(), "secluded")
	must(t, err)
	connected := d.startProxy(t, site.Proxy)
	m := d.MemberAt(t, "secluded", d.StandIn(t, "secluded", site.Namespace, site.Address), nil)
	credentials := filepath.Join(t.TempDir(), "credentials")
	must(t, os.WriteFile(credentials, []byte(proxyUser+":wrong\n"), 0o600))
	that(t, "the edge's network reaches the gateways only through the proxy", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if conn, err := site.DialContext(ctx, "tcp", public(netns.PublicAddress(0))); err == nil {
			_ = conn.Close()
			t.Error("the public port is reached directly: what follows would prove nothing")
		}
	})
	d.StartEdge(t, lab.EdgeSpec{Name: "edge-secluded", Site: site.Namespace, Flags: []string{
		"--proxy=http://" + net.JoinHostPort(
			netns.ProxyAddress().String(), fmt.Sprint(proxyPort),
		), "--proxy-credentials-file=" + credentials,
	}}, m)
	that(t, "an edge reports that the proxy rejects its password", func(t *testing.T) {
		eventually(t, d.LogContains("edge-secluded", "rejects the user and password"))
	})
	that(t, "enrolment, configuration and reverse tunnels pass through the proxy", func(t *testing.T) {
		must(t, os.WriteFile(credentials, []byte(proxyUser+":"+proxyPassword+"\n"), 0o600))
		measured("behind_proxy_s", world.Took(t, 2*patience, m.Works).Seconds())
		must(t, noSecretIn(t, d.World, "edge-secluded", proxyPassword))
	})
	that(t, "an open stream through the proxy is not interrupted", func(t *testing.T) {
		stream, err := m.Path(1, true).Follow(t.Context())
		must(t, err)
		defer stream.Close()
		must(t, startLoadFor(t, 5*time.Second, m))
		must(t, stream.Alive())
	})
	that(t, "the proxy connects only to the gateways' public name", func(t *testing.T) {
		lines, err := proc.Lines(connected)
		must(t, err)
		for _, line := range lines {
			if !strings.Contains(line, net.JoinHostPort(netns.PublicName, fmt.Sprint(netns.PublicPort))) {
				t.Errorf("it was asked for %q", line)
			}
		}
		if len(lines) < 2 {
			t.Errorf("it was asked only for %q", lines)
		}
	})
}

// noSecretIn returns an error if a log contains a secret.
func noSecretIn(t *testing.T, w *world.World, log, secret string) error {
	t.Helper()
	for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(proxyUser + ":" + secret))} {
		if proc.HasText(w.LogFile(log), form) == nil {
			return fmt.Errorf("the log of %s holds the password", log)
		}
	}
	return nil
}

// startLoadFor sends requests to a member for some time, and returns an error if a request has failed.
func startLoadFor(t *testing.T, duration time.Duration, m *world.Member) error {
	t.Helper()
	l := traffic.Start(t, 50, 0, "/whoami", m.Paths()...)
	defer l.Stop()
	until := time.Now().Add(duration)
	must(t, proc.Wait(t.Context(), 2*duration, func(context.Context) error {
		if left := time.Until(until); left > 0 {
			return fmt.Errorf("%s left", left)
		}
		return nil
	}))
	return l.Unbroken(traffic.Mark{})
}

// exemptFromProxy proves that NO_PROXY is respected, with a proxy that is unreachable.
func (d *doors) exemptFromProxy(t *testing.T) {
	r := d.remote(t, "exempt")
	dead, err := r.site.Nowhere(t.Context())
	must(t, err)
	that(
		t,
		"an edge bypasses the proxy of its environment for hosts in NO_PROXY",
		func(t *testing.T) {
			d.StartEdge(t, lab.EdgeSpec{
				Name: "edge-exempt", Site: r.site.Namespace, Env: []string{"HTTPS_PROXY=http://" + net.JoinHostPort(dead.String(),
					"3128"), "NO_PROXY=.public.test,10.0.0.0/8"},
			}, r.Member)
			measured("no_proxy_s", world.Took(t, 2*patience, r.Works).Seconds())
		},
	)
}
