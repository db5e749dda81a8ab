// Package konnectivity runs the programs of konnectivity, with which Fairlead is compared: a server with a Unix socket
// for a kube-apiserver, and agents in a remote network, both with their defaults. Input: a Workspace and two networks.
// Output: the processes. It does not know how the programs were built.
package konnectivity

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// patience bounds the start of a program.
const patience = 30 * time.Second

// Modes of konnectivity.
const (
	GRPC        = "grpc"
	HTTPConnect = "http-connect"
)

// Spec describes konnectivity in one of its modes.
type Spec struct {
	Mode      string
	Beside    *netns.Namespace // of the server
	Address   netip.Addr       // at which agents dial the server
	FirstPort int              // of 20 that the programs use
}

// Konnectivity is a server, to which agents can be added.
type Konnectivity struct {
	Spec
	Server *proc.Process

	workspace     *workspace.Workspace
	serving, auth string // key pairs: paths without extensions
	ca            string // file
	agents        int    // started so far
}

// Installed returns an error if the programs are not there.
func Installed(parts workspace.Parts) error {
	for _, program := range []string{"server", "agent"} {
		if _, err := os.Stat(path(parts, program)); err != nil {
			return fmt.Errorf("%w: `cd tools/bench && go run ./install` makes it", err)
		}
	}
	return nil
}

func path(parts workspace.Parts, program string) string {
	return filepath.Join(parts.Root, "bin", "peers", "konnectivity-"+program)
}

// Start starts a server, and returns when it accepts connections of an apiserver.
func Start(ctx context.Context, w *workspace.Workspace, spec Spec) (*Konnectivity, error) {
	if err := Installed(w.Parts); err != nil {
		return nil, err
	}
	k := &Konnectivity{Spec: spec, workspace: w}
	if err := k.writeCredentials(); err != nil {
		return nil, fmt.Errorf("writing the credentials of konnectivity: %w", err)
	}
	var err error
	k.Server, err = k.start(spec.Beside, "server", k.name("server"),
		"--mode="+spec.Mode, "--uds-name="+k.socket(), "--server-port=0",
		"--agent-port="+k.port(1), "--agent-bind-address="+spec.Address.String(),
		"--cluster-cert="+k.serving+".crt", "--cluster-key="+k.serving+".key", "--cluster-ca-cert="+k.ca,
		"--admin-port="+k.port(2), "--health-port="+k.port(0), "--server-count=1",
	)
	if err != nil {
		return nil, err
	}
	return k, k.Server.WaitReady(ctx, patience, proc.Listens(k.socket())) // it is ready as soon as it has an agent
}

// StartAgent starts an agent, and returns when it is connected.
func (k *Konnectivity) StartAgent(ctx context.Context, in *netns.Namespace) (*proc.Process, error) {
	k.agents++
	health := k.port(10 + 2*k.agents)
	agent, err := k.start(in, "agent", k.name("agent-"+strconv.Itoa(k.agents)),
		"--ca-cert="+k.ca, "--agent-cert="+k.auth+".crt", "--agent-key="+k.auth+".key",
		"--proxy-server-host="+k.Address.String(), "--proxy-server-port="+k.port(1),
		"--admin-server-port="+k.port(11+2*k.agents), "--health-server-port="+health,
	)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DialContext: in.DialContext, DisableKeepAlives: true}
	return agent, agent.WaitReady(ctx, patience, proc.Answers200(&http.Client{Transport: transport},
		"http://127.0.0.1:"+health+"/readyz"))
}

// Selector returns the configuration of an apiserver that uses the server.
func (k *Konnectivity) Selector() []byte {
	protocol := map[string]string{GRPC: "GRPC", HTTPConnect: "HTTPConnect"}[k.Mode]
	return kube.EgressSelector(protocol, k.socket())
}

func (k *Konnectivity) name(of string) string { return "konnectivity-" + k.Mode + "-" + of }

func (k *Konnectivity) socket() string { return k.workspace.File(k.name("server.sock")) }

func (k *Konnectivity) port(i int) string { return strconv.Itoa(k.FirstPort + i) }

// writeCredentials makes a CA, and the key pairs of server and agents.
func (k *Konnectivity) writeCredentials() error {
	ca, err := pki.NewAuthority("konnectivity")
	if err != nil {
		return err
	}
	serving, err := ca.Issue(pki.LeafSpec{
		CommonName: "server", Names: []string{k.Address.String()}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return err
	}
	auth, err := ca.Issue(pki.LeafSpec{CommonName: "agent", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		return err
	}
	dir := k.workspace.Dir
	k.ca = k.workspace.File(k.name("ca.crt"))
	k.serving, k.auth = k.workspace.File(k.name("server")), k.workspace.File(k.name("agent"))
	if err := serving.Write(dir, k.name("server")); err != nil {
		return err
	}
	if err := auth.Write(dir, k.name("agent")); err != nil {
		return err
	}
	return os.WriteFile(k.ca, ca.CertPEM, 0o644)
}

// start starts a program.
func (k *Konnectivity) start(in *netns.Namespace, program, name string, args ...string) (*proc.Process, error) {
	p, err := proc.Start(proc.Spec{
		Name: name, Namespace: in, Program: path(k.workspace.Parts, program), Log: k.workspace.LogFile(name), Args: args,
	})
	if err != nil {
		return nil, err
	}
	k.workspace.OnClose(func(context.Context) { p.Kill() })
	return p, nil
}
