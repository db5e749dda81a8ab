// Package kubeletserver serves the kubelet endpoints to which a kube-apiserver proxies exec, port-forward and logs. Its
// Runtime defines what a container is. It does not authenticate clients; the TLS settings of its server may.
package kubeletserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idleTimeout   = time.Hour
	createTimeout = 30 * time.Second
)

// A Runtime provides access to the containers.
type Runtime interface {
	// Command returns a command that runs inside of a container, without starting it.
	Command(ctx context.Context, namespace, pod, container string, argv []string) (*exec.Cmd, error)
	// Logs writes what a container has printed so far.
	Logs(w io.Writer, namespace, pod, container string) error
}

// Handler serves the endpoints. port-forward dials 127.0.0.1: all Pods are in the host's network.
func Handler(containers Runtime) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		serveExec(w, r, containers)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", servePortForward)
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		if err := containers.Logs(w, r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
		}
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	return mux
}

func serveExec(w http.ResponseWriter, r *http.Request, containers Runtime) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	in := executor{containers, r.PathValue("namespace")}
	remotecommand.ServeExec(w, r, in, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"],
		options, idleTimeout, createTimeout, remotecommand.SupportedStreamingProtocols)
}

func servePortForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, loopback{}, r.PathValue("pod"), "", options, idleTimeout, createTimeout,
		portforward.SupportedProtocols)
}

// executor runs commands in the containers of one Kubernetes namespace.
type executor struct {
	containers Runtime
	namespace  string
}

// ExecInContainer runs one command to its end. It never provides a terminal, even if the request asks for one.
func (e executor) ExecInContainer(ctx context.Context, pod, _, container string, argv []string, in io.Reader,
	out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	cmd, err := e.containers.Command(ctx, e.namespace, pod, container, argv)
	if err != nil {
		return err
	}
	if in != nil {
		// Not cmd.Stdin: Wait would then block until the client closes its side.
		pipe, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(pipe, in)
			_ = pipe.Close()
		}()
	}
	if out != nil {
		cmd.Stdout = out
	}
	if errOut != nil {
		cmd.Stderr = errOut
	}
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil {
			return err
		}
		return utilexec.CodeExitError{Err: err, Code: cmd.ProcessState.ExitCode()}
	}
	return nil
}

// loopback forwards ports of Pods.
type loopback struct{}

// PortForward copies between a stream and a port until both directions have ended.
func (loopback) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))), createTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(conn, stream); _ = conn.(*net.TCPConn).CloseWrite(); done <- struct{}{} }()
	go func() { _, _ = io.Copy(stream, conn); done <- struct{}{} }()
	<-done
	<-done
	return nil
}
