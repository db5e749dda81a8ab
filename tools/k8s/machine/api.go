package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/tools/k8s/kubeletserver"
)

const clusterCA = "/etc/kubernetes/pki/ca.crt"

// serveAPI serves the kubelet's API, to which apiservers proxy exec, logs and port-forward. It requires a client
// certificate of the cluster's CA.
func (k *kubelet) serveAPI(ctx context.Context) {
	certificate, err := selfSigned(k.config.Hostname, net.ParseIP(k.config.Address))
	if err != nil {
		slog.Error("kubelet has no serving certificate", "error", err)
		return
	}
	server := &http.Server{
		Addr: kubeletAddress(k.config), Handler: kubeletserver.Handler(k), ReadHeaderTimeout: 30 * time.Second,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				roots := x509.NewCertPool()
				data, err := os.ReadFile(clusterCA)
				if err != nil || !roots.AppendCertsFromPEM(data) {
					return nil, fmt.Errorf("no CA of the cluster in %s: %w", clusterCA, err)
				}
				return &tls.Config{
					MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate},
					ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
				}, nil
			},
			Certificates: []tls.Certificate{certificate},
		},
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServeTLS("", ""); err != nil && ctx.Err() == nil {
		slog.Error("kubelet's server has no listener", "error", err)
	}
}

func (k *kubelet) findContainer(namespace, podName, name string) (*container, error) {
	for _, p := range k.list() {
		if p.spec.Namespace == namespace && p.spec.Name == podName {
			return p.find(name)
		}
	}
	return nil, fmt.Errorf("pod %s/%s does not run on %s", namespace, podName, k.config.Hostname)
}

// Command returns a command that runs in a container: with its mounts, its user and its environment.
func (k *kubelet) Command(ctx context.Context, namespace, pod, name string, argv []string) (*exec.Cmd, error) {
	c, err := k.findContainer(namespace, pod, name)
	if err != nil {
		return nil, err
	}
	return c.command(ctx, argv)
}

func (c *container) command(ctx context.Context, argv []string) (*exec.Cmd, error) {
	pid := c.pid()
	if pid == 0 {
		return nil, fmt.Errorf("container %s does not run", c.spec.Name)
	}
	if len(argv) == 0 {
		return nil, errors.New("no command to run")
	}
	start, err := c.plan()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"enter", strconv.Itoa(pid)}, argv...)...)
	cmd.Args[0] = "machine"
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = start.Env
	return cmd, nil
}

// Logs writes what the container's last process has printed.
func (k *kubelet) Logs(w io.Writer, namespace, pod, name string) error {
	c, err := k.findContainer(namespace, pod, name)
	if err != nil {
		return err
	}
	return printLog(w, c.logFile())
}
