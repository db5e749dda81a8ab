package agent

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// BootstrapFile is the one file that an edge needs, as it stands in the bootstrap Secret of a Cluster.
type BootstrapFile struct {
	ID           string `json:"id"`           // Tunnel.spec.id; empty in a file of an older controller
	Gateway      string `json:"gateway"`      // host:port of the gateways' public port
	TunnelDomain string `json:"tunnelDomain"` // the installation's
	Token        string `json:"token"`        // the bootstrap token
	CA           string `json:"ca"`           // PEM, of the control channel
}

// ReadBootstrapFile reads the file. Fields that it does not know are left to newer agents. No error holds any of what was read.
func ReadBootstrapFile(path string) (BootstrapFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return BootstrapFile{}, fmt.Errorf("reading bootstrap file: %w", err)
	}
	var f BootstrapFile
	if err := yaml.Unmarshal(data, &f); err != nil {
		return BootstrapFile{}, fmt.Errorf("reading bootstrap file: %s is no YAML with the fields id, gateway, tunnelDomain, token and ca", path)
	}
	return f, nil
}
