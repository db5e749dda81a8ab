// Command fake-kubelet answers the endpoints of a kubelet to which a kube-apiserver proxies exec, port-forward and logs,
// so that tests can send upgraded connections through a real apiserver without a container runtime.
//
//	fake-kubelet -address 10.0.0.2:10250 -cert FILE -key FILE
//
// exec runs the command on this machine, port-forward dials 127.0.0.1. It checks nobody's identity: tests only.
package main

import (
	"context"
	"flag"
	"io"
	"log"
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

func main() {
	address := flag.String("address", "127.0.0.1:10250", "address to listen on")
	cert := flag.String("cert", "", "serving certificate file")
	key := flag.String("key", "", "key file of the serving certificate")
	flag.Parse()

	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", serveExec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", servePortForward)
	server := &http.Server{Addr: *address, Handler: mux, ReadHeaderTimeout: createTimeout}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}

func serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, host{}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"],
		options, idleTimeout, createTimeout, remotecommand.SupportedStreamingProtocols)
}

func servePortForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, host{}, r.PathValue("pod"), "", options, idleTimeout, createTimeout,
		portforward.SupportedProtocols)
}

// host plays the container runtime: this machine is the only container.
type host struct{}

func (host) ExecInContainer(ctx context.Context, _, _, _ string, argv []string, in io.Reader, out, errOut io.WriteCloser,
	_ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if in != nil {
		// A pipe of our own: with cmd.Stdin, Wait would block until the client closes its side.
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

func (host) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
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
