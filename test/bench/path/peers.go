package path

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
)

// peers are comparable projects, and proxies that must be able to dial the apiserver, as an upper bound. HAProxy and
// the single Envoy do not encrypt, and their link is between them and the apiserver.
var peers = []contender{
	{"remotedialer", remotedialer},
	{"konnectivity", konnectivity},
	{"rathole", rathole},
	{"ssh", ssh},
	{"haproxy (forward)", haproxy},
	{"envoy (forward)", forwarder},
}

// onlyInFull are the peers that a quick run measures only where that is fast: an old peer, and the upper bounds that
// are not tunnels.
var onlyInFull = []string{"ssh", "haproxy (forward)", "envoy (forward)"}

// peer returns the path of a program of tools/bench.
func (p *place) peer(name string) (string, error) {
	path := filepath.Join(p.bin, "peers", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: `cd tools/bench && go run ./install` makes it, or says why not", err)
	}
	return path, nil
}

// ports returns addresses of 127.0.0.1 with free ports.
func ports(n int) ([]string, error) {
	var all []string
	for range n {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		all = append(all, local(port))
	}
	return all, nil
}

func (p *place) file(name string) string { return filepath.Join(p.dir, name) }

// remotedialer starts Rancher's remotedialer, in which connections become messages in one WebSocket over TLS.
func remotedialer(ctx context.Context, p *place, s *subject, l link) error {
	program, err := p.peer("remotedialer")
	if err != nil {
		return err
	}
	at, err := ports(2)
	if err != nil {
		return err
	}
	tunnel, err := s.serve(
		ctx, l, at[0], "server", program, "server", p.file("server.crt"), p.file("server.key"), at[0], at[1], p.at,
	)
	if err != nil {
		return err
	}
	s.reach(at[1])
	_, err = s.run("client", program, "client", p.file("ca.crt"), tunnel)
	return err
}

// konnectivity starts Kubernetes' Konnectivity: gRPC over mutual TLS. Clients send CONNECT to the server on a Unix
// socket.
func konnectivity(ctx context.Context, p *place, s *subject, l link) error {
	server, err1 := p.peer("konnectivity-server")
	agent, err2 := p.peer("konnectivity-agent")
	at, err3 := ports(5)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	socket := filepath.Join(s.dir, "proxy.sock")
	tunnel, err := s.serve(
		ctx,
		l,
		at[0],
		"server",
		server,
		"--mode=http-connect",
		"--uds-name="+socket,
		"--server-port=0",
		"--agent-port="+port(at[0]),
		"--agent-bind-address=127.0.0.1",
		"--cluster-cert="+p.file(
			"server.crt",
		),
		"--cluster-key="+p.file("server.key"),
		"--cluster-ca-cert="+p.file("ca.crt"),
		"--admin-port="+port(at[1]),
		"--health-port="+port(at[2]),
		"--server-count=1",
	)
	if err != nil {
		return err
	}
	s.dial = func(ctx context.Context) (net.Conn, error) { return connect(ctx, socket, p.at) }
	_, err = s.run(
		"agent", agent, "--ca-cert="+p.file("ca.crt"), "--agent-cert="+p.file("client.crt"),
		"--agent-key="+p.file("client.key"), "--proxy-server-host=127.0.0.1", "--proxy-server-port="+port(tunnel),
		"--admin-server-port="+port(at[3]), "--health-server-port="+port(at[4]),
	)
	return err
}

func port(address string) string {
	_, p, _ := net.SplitHostPort(address)
	return p
}

// connect requests a connection to an address from a proxy on a Unix socket.
func connect(ctx context.Context, socket, to string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// Nothing follows the answer before the client sends, so this reader cannot lose anything.
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("CONNECT %s: %s", to, response.Status)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// serve starts a program that listens at an address, and returns the address at which the other side of the link
// reaches it.
func (s *subject) serve(
	ctx context.Context, l link, at, name, program string, args ...string,
) (tunnel string, err error) {
	if err := s.start(ctx, at, name, program, args...); err != nil {
		return "", err
	}
	return s.over(l, at)
}

// start starts a program and waits until it listens at an address.
func (s *subject) start(ctx context.Context, at, name, program string, args ...string) error {
	by, err := s.run(name, program, args...)
	if err != nil {
		return err
	}
	return until(ctx, at+" is listened on", func() error {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			err = conn.Close()
		}
		return err
	}, by)
}

// ssh starts OpenSSH with a forwarded port of the server (-R). The keys of client and server are made for it.
func ssh(ctx context.Context, p *place, s *subject, l link) error {
	sshd, err := p.peer("sshd")
	if err != nil {
		return err
	}
	at, err := ports(2)
	if err != nil {
		return err
	}
	for _, name := range []string{"host", "user"} {
		if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir,
			name)).CombinedOutput(); err != nil {
			return fmt.Errorf("making a key: %w: %s", err, out)
		}
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd requires it
		return err
	}
	config := fmt.Sprintf(
		"ListenAddress %s\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nStrictModes no\nUsePAM no\nPidFile "+
			"none\nAllowTcpForwarding yes\nPermitRootLogin yes\nMaxStartups 100\n",
		at[0],
		s.dir,
		s.dir,
	)
	if err := os.WriteFile(filepath.Join(s.dir, "sshd_config"), []byte(config), 0o600); err != nil {
		return err
	}
	// sshd requires a user sshd, which this script provides in its own mount namespace.
	const asUser = `(cat /etc/passwd; echo sshd:x:65534:65534::/run/sshd:/bin/false) > "$1/passwd" && ` +
		`mount --bind "$1/passwd" /etc/passwd && exec "$2" -D -e -f "$1/sshd_config"`
	tunnel, err := s.serve(ctx, l, at[0], "sshd", "unshare", "--mount", "sh", "-c", asUser, "sh", s.dir, sshd)
	if err != nil {
		return err
	}
	s.reach(at[1])
	_, err = s.run(
		"ssh", "ssh", "-N", "-i", filepath.Join(s.dir, "user"), "-p", port(tunnel), "-o", "StrictHostKeyChecking=no", "-o",
		"UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-R", at[1]+":"+p.at, "root@127.0.0.1",
	)
	return err
}

// haproxy starts an HAProxy that forwards TCP.
func haproxy(ctx context.Context, p *place, s *subject, l link) error {
	program, err := p.peer("haproxy")
	if err != nil {
		return err
	}
	at, err := ports(1)
	if err != nil {
		return err
	}
	to, err := s.over(l, p.at)
	if err != nil {
		return err
	}
	config := fmt.Sprintf(
		"global\n nbthread 1\n maxconn 5000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server "+
			"1h\nlisten l\n bind %s\n server s %s\n",
		at[0],
		to,
	)
	if err := os.WriteFile(filepath.Join(s.dir, "haproxy.cfg"), []byte(config), 0o600); err != nil {
		return err
	}
	s.reach(at[0])
	return s.start(ctx, at[0], "haproxy", program, "-db", "-f", filepath.Join(s.dir, "haproxy.cfg"))
}
