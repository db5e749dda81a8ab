// Package proxy is the command proxy: a local HTTP proxy through which clients outside the network of a management
// cluster reach workload clusters. Its input is the user's permissions in the management cluster; its output is a port
// on loopback that accepts CONNECT to names of tunnels, and forwards each connection to a ready gateway. It does not
// know what clients send, which is TLS to an apiserver.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/cli/kubeconfig"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// proxyFlags are the flags of proxy.
type proxyFlags struct {
	management.Flags
	installation string
	port         uint16
	allowExec    bool
}

// Command returns the command proxy.
func Command() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy [CLUSTER -- COMMAND [ARG...]]",
		Short: "Reach workload clusters from outside the management cluster's network",
		Long: strings.TrimSpace(`
Serve an HTTP proxy on a loopback port of this machine, until you stop it. One port serves every workload
cluster, for kubeconfigs of "fairlead kubeconfig --via=proxy". It accepts only CONNECT to names of Tunnels, and
forwards each connection to a ready gateway by a port-forward through the apiserver of the management cluster.
When a gateway goes away, the next connections lead through another one.

With CLUSTER and COMMAND, run one command with a kubeconfig of that workload cluster in KUBECONFIG, on a free
port, and then end. The kubeconfig is a temporary file with mode 0600.

Needs: list on Tunnels, in all namespaces or in the selected one; in the namespace of the installation, list on
Pods and create on pods/portforward (Role fairlead-proxy). With CLUSTER: get on Tunnels and Secrets of its
namespace instead of list on Tunnels.
Changes: nothing.
Exit codes: 0 you stopped it; 1 it cannot reach a gateway, or the command failed; 2 the command line is
invalid. With COMMAND, its exit code.`),
		Example: "  fairlead proxy\n  fairlead proxy -n prod --port 8128 &\n" +
			"  fairlead proxy -n prod c1 -- kubectl get namespaces",
		Args: arguments,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.AddTo(cmd.Flags())
	set := cmd.Flags()
	set.StringVarP(
		&f.Namespace, "namespace", "n", "", "namespace of the Tunnels, and of CLUSTER (default: all namespaces; of CLUSTER: "+
			"the namespace of the context)",
	)
	set.StringVar(&f.installation, "installation", collect.DefaultNamespace, "namespace in which Fairlead is installed")
	set.Uint16Var(
		&f.port, "port", kubeconfig.DefaultProxyPort, "port on 127.0.0.1; 0: a free one, which is the default with CLUSTER",
	)
	set.BoolVar(&f.allowExec, "allow-exec", false, "accept a user with an exec plugin, which then runs on your machine")
	return cmd
}

func arguments(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash == -1 && len(args) == 0, dash == 1 && len(args) > 1:
		return nil
	}
	return errors.New("give no arguments, or CLUSTER -- COMMAND")
}

func (f *proxyFlags) run(cmd *cobra.Command, args []string) error {
	m, err := f.Open()
	if err != nil {
		return err
	}
	p := &names{reader: m, namespace: f.Namespace, fallback: m.Namespace}
	s := newServer(p, &gateways{rest: m.Config, namespace: f.installation}, &lines{out: cmd.ErrOrStderr()})
	if len(args) > 0 {
		return f.runCommand(cmd, m, s, args)
	}
	listener, err := f.listen(cmd.Context(), f.port)
	if err != nil {
		return err
	}
	count, err := p.list(cmd.Context())
	if err == nil {
		err = s.gateways.check(cmd.Context())
	}
	if err != nil {
		_ = listener.Close()
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s serves %d names of Tunnels\n", urlOf(listener), count)
	if err != nil {
		_ = listener.Close()
		return err
	}
	return s.run(cmd.Context(), listener)
}

// listen opens a port on loopback.
func (f *proxyFlags) listen(ctx context.Context, port uint16) (net.Listener, error) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf(
			"another process listens on %s, perhaps another fairlead proxy: end it, or choose another port with --port, and "+
				"run fairlead kubeconfig again with the same --proxy-port",
			address,
		)
	case err != nil:
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return listener, nil
}

func portOf(listener net.Listener) uint16 { return uint16(listener.Addr().(*net.TCPAddr).Port) }

func urlOf(listener net.Listener) string { return kubeconfig.ProxyURL(portOf(listener)) }

// runCommand serves one Cluster while a command runs.
func (f *proxyFlags) runCommand(cmd *cobra.Command, m *management.Client, s *server, args []string) error {
	key := client.ObjectKey{Namespace: m.Namespace, Name: args[0]}
	name := key.Name + "." + key.Namespace
	config, tunnel, err := kubeconfig.Read(cmd.Context(), m, kubeconfig.Options{
		Cluster: key, Name: name, AllowExec: f.allowExec,
	})
	if err != nil {
		return err
	}
	s.names.only(tunnel.Status.Names)
	if err := s.gateways.check(cmd.Context()); err != nil {
		return err
	}
	port := f.port
	if !cmd.Flags().Changed("port") {
		port = 0
	}
	listener, err := f.listen(cmd.Context(), port)
	if err != nil {
		return err
	}
	if err := kubeconfig.LeadThroughProxy(config.Clusters[name], tunnel, portOf(listener)); err != nil {
		_ = listener.Close()
		return fmt.Errorf("the kubeconfig of %s: %w", key, err)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	served := make(chan error, 1)
	go func() { served <- s.run(ctx, listener) }()
	code, err := runWith(cmd, config, args[1:])
	cancel()
	err = errors.Join(err, <-served)
	if err == nil && code != 0 {
		return output.Exit(code)
	}
	return err
}

// lines is a writer that connections share.
type lines struct {
	mu  sync.Mutex
	out io.Writer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}
