package networks

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// The subjects of konnectivity.
const (
	grpcMode    = "konnectivity grpc"
	connectMode = "konnectivity http-connect"
)

// konnectivityMode is konnectivity in one of its modes, with the defaults of its programs: a server beside the gateway,
// with a Unix socket for the apiserver, and agents in the remote network.
type konnectivityMode struct {
	*world
	mode           string // the value of the server's flag
	firstPort      int
	serving, agent string // key pairs: paths without extensions
}

// konnectivity returns how a mode is started. protocol is its name in an egress selector.
func konnectivity(mode, protocol string, firstPort int) func(context.Context, *world, *subject) (string, error) {
	return func(ctx context.Context, w *world, s *subject) (_ string, err error) {
		k := &konnectivityMode{world: w, mode: mode, firstPort: firstPort}
		if k.serving, err = w.credentials(mode+"-server", netns.PublicAddress(0).String()); err != nil {
			return "", err
		}
		if k.agent, err = w.credentials(mode + "-agent"); err != nil {
			return "", err
		}
		server, err := k.startServer(ctx)
		if err != nil {
			return "", err
		}
		s.shared = append(s.shared, server)
		s.edge = func(ctx context.Context) (*proc.Process, error) { return k.startAgent(ctx, s.number) }
		return selector(protocol, k.socket()), s.addEdge(ctx)
	}
}

func (k *konnectivityMode) socket() string { return k.File(k.mode + ".sock") }

func (k *konnectivityMode) port(i int) string { return strconv.Itoa(k.firstPort + i) }

func (k *konnectivityMode) startServer(ctx context.Context) (*proc.Process, error) {
	return k.startPart(ctx, k.network.Gateways[0], "server", k.mode+"-server", k.port(0),
		"--mode="+k.mode, "--uds-name="+k.socket(), "--server-port=0",
		"--agent-port="+k.port(1), "--agent-bind-address="+netns.PublicAddress(0).String(),
		"--cluster-cert="+k.serving+".crt", "--cluster-key="+k.serving+".key", "--cluster-ca-cert="+k.File(caFile),
		"--admin-port="+k.port(2), "--health-port="+k.port(0), "--server-count=1",
	)
}

func (k *konnectivityMode) startAgent(ctx context.Context, number int) (*proc.Process, error) {
	health := k.port(10 + 2*number)
	return k.startPart(ctx, k.network.Workload, "agent", k.mode+"-agent-"+strconv.Itoa(number), health,
		"--ca-cert="+k.File(caFile), "--agent-cert="+k.agent+".crt", "--agent-key="+k.agent+".key",
		"--proxy-server-host="+netns.PublicAddress(0).String(), "--proxy-server-port="+k.port(1),
		"--admin-server-port="+k.port(11+2*number), "--health-server-port="+health,
	)
}

// startPart starts a program of konnectivity, and returns when it is ready.
func (k *konnectivityMode) startPart(
	ctx context.Context, in *netns.Namespace, program, name, health string, args ...string,
) (*proc.Process, error) {
	path := filepath.Join(k.Parts.Root, "bin", "peers", "konnectivity-"+program)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%w: `cd tools/bench && go run ./install` makes it", err)
	}
	p, err := proc.Start(proc.Spec{Name: name, Namespace: in, Program: path, Log: k.LogFile(name), Args: args})
	if err != nil {
		return nil, err
	}
	k.OnClose(func(context.Context) { p.Kill() })
	transport := &http.Transport{DialContext: in.DialContext, DisableKeepAlives: true}
	if program == "server" { // it is ready as soon as it has an agent
		return p, p.WaitReady(ctx, patience, listens(k.socket()))
	}
	return p, p.WaitReady(ctx, patience, proc.Answers200(&http.Client{Transport: transport},
		"http://127.0.0.1:"+health+"/readyz"))
}

// listens returns a condition that holds as soon as a Unix socket accepts connections.
func listens(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
