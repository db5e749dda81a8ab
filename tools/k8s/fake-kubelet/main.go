// Command fake-kubelet serves the kubelet endpoints to which a kube-apiserver proxies exec, port-forward and logs, so
// that tests can send upgraded connections through a real apiserver without a container runtime.
//
//	fake-kubelet -address 10.0.0.2:10250 -cert FILE -key FILE [-log-bytes N]
//
// exec runs the command on this machine, port-forward dials 127.0.0.1. Every container has printed the same number of
// bytes. It does not authenticate clients and is only for tests.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"math"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/fairlead/fairlead/tools/k8s/kubeletserver"
)

func main() {
	address := flag.String("address", "127.0.0.1:10250", "address to listen on")
	cert := flag.String("cert", "", "serving certificate file")
	key := flag.String("key", "", "key file of the serving certificate")
	logs := flag.Int64("log-bytes", 0, "size of the logs of each container; 0: there are none")
	flag.Parse()

	server := &http.Server{
		Addr: *address, Handler: kubeletserver.Handler(host{*logs}), ReadHeaderTimeout: 30 * time.Second,
	}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}

// host simulates the container runtime: this machine is the only container.
type host struct {
	logBytes int64 // of each container
}

func (host) Command(ctx context.Context, _, _, _ string, argv []string) (*exec.Cmd, error) {
	if len(argv) == 0 {
		return nil, errors.New("no command to run")
	}
	return exec.CommandContext(ctx, argv[0], argv[1:]...), nil
}

// Logs writes lines of 100 bytes in pieces of 64 KB, the last of them cut to the size of the logs. The logs of Pods
// whose names begin with flood have no end.
func (h host) Logs(w io.Writer, _, pod, _ string) error {
	if strings.HasPrefix(pod, "flood") {
		h.logBytes = math.MaxInt64
	}
	if h.logBytes == 0 {
		return errors.New("this kubelet keeps no logs")
	}
	piece := bytes.Repeat(append(bytes.Repeat([]byte("."), 99), '\n'), 640)
	for left := h.logBytes; left > 0; left -= int64(len(piece)) {
		if _, err := w.Write(piece[:min(left, int64(len(piece)))]); err != nil {
			return nil // the client has gone
		}
	}
	return nil
}
