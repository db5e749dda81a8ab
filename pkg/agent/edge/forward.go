package edge

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/model"
)

// forwardFile holds the address at which the agent forwards Envoy's connections through a proxy.
const forwardFile = "forward-address"

// listenForward listens on the loopback interface for an Envoy that dials gateways through a proxy. It uses the
// previous address, because Envoy's cached configuration contains it and is not updated while the control channel is
// unavailable.
func listenForward(dir string, log *slog.Logger) (net.Listener, model.Endpoint, error) {
	path := filepath.Join(dir, forwardFile)
	if last, err := os.ReadFile(path); err == nil {
		at := strings.TrimSpace(string(last))
		listener, err := net.Listen("tcp", at)
		if err == nil {
			endpoint, err := model.ParseEndpoint(at)
			return listener, endpoint, err
		}
		log.Warn("previous port is in use: tunnels wait for new configuration", "address", at, "error", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, model.Endpoint{}, fmt.Errorf("listening for Envoy's connections through the proxy: %w", err)
	}
	at, err := model.ParseEndpoint(listener.Addr().String())
	if err != nil {
		_ = listener.Close()
		return nil, model.Endpoint{}, err
	}
	if err := disk.Replace(path, []byte(at.String()+"\n")); err != nil {
		log.Warn("cannot persist address of the proxy listener", "error", err)
	}
	return listener, at, nil
}
