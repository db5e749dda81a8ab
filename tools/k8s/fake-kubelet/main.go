// Command fake-kubelet serves the kubelet endpoints to which a kube-apiserver proxies exec, port-forward and logs, so
// that tests can send upgraded connections through a real apiserver without a container runtime.
//
//	fake-kubelet -address 10.0.0.2:10250 -cert FILE -key FILE
//
// exec runs the command on this machine, port-forward dials 127.0.0.1. It does not authenticate clients and is only for
// tests.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"os/exec"
	"time"

	"github.com/fairlead/fairlead/tools/k8s/kubeletserver"
)

func main() {
	address := flag.String("address", "127.0.0.1:10250", "address to listen on")
	cert := flag.String("cert", "", "serving certificate file")
	key := flag.String("key", "", "key file of the serving certificate")
	flag.Parse()

	server := &http.Server{Addr: *address, Handler: kubeletserver.Handler(host{}), ReadHeaderTimeout: 30 * time.Second}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}

// host simulates the container runtime: this machine is the only container.
type host struct{}

func (host) Command(ctx context.Context, _, _, _ string, argv []string) (*exec.Cmd, error) {
	if len(argv) == 0 {
		return nil, errors.New("no command to run")
	}
	return exec.CommandContext(ctx, argv[0], argv[1:]...), nil
}

func (host) Logs(io.Writer, string, string, string) error {
	return errors.New("this kubelet keeps no logs")
}
