package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/model"
)

// BootstrapFile is the one file that an edge needs for a tunnel. The bootstrap Secret of a Cluster contains it.
type BootstrapFile struct {
	ID           string    `json:"id"`           // Tunnel.spec.id
	Gateway      Addresses `json:"gateway"`      // host:port of the gateways' public port, one or several
	Gateways     Addresses `json:"gateways"`     // alternative name of gateway
	TunnelDomain string    `json:"tunnelDomain"` // of the installation
	Token        string    `json:"token"`        // the bootstrap token
	CA           string    `json:"ca"`           // PEM, of the control channel
	// Role is what the tunnel is for: edge, or egress for the Envoy beside an apiserver. Empty: edge.
	Role model.Role `json:"role,omitempty"`
}

// Addresses is a list of addresses. In YAML it is a string or a list of strings.
type Addresses []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *Addresses) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*a = nil
		if one != "" {
			*a = Addresses{one}
		}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// ReadBootstrapFile reads a bootstrap file. It ignores unknown fields, which newer agents may use. No error contains
// any content of the file.
func ReadBootstrapFile(path string) (BootstrapFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return BootstrapFile{}, fmt.Errorf("reading bootstrap file: %w", err)
	}
	f, err := ParseBootstrapFile(data)
	if err != nil {
		return BootstrapFile{}, fmt.Errorf("%w: %s", err, path)
	}
	return f, nil
}

// MaxBootstrapFile is enough for several CAs of about 1 KiB each.
const MaxBootstrapFile = 256 << 10

// errNoBootstrapFile replaces every error of the parser, which could contain content of the file.
var errNoBootstrapFile = errors.New(
	"reading bootstrap file: it is not YAML with the fields id, gateway, tunnelDomain, token and ca",
)

// ParseBootstrapFile parses the content of a bootstrap file, like ReadBootstrapFile.
func ParseBootstrapFile(data []byte) (f BootstrapFile, err error) {
	if len(data) > MaxBootstrapFile || yaml.Unmarshal(data, &f) != nil {
		return BootstrapFile{}, errNoBootstrapFile
	}
	return f, nil
}

// StartupFields returns the fields of a file that are read only once. If they change, the membership must restart.
func (f BootstrapFile) StartupFields() string {
	return fmt.Sprint(f.ID, f.TunnelDomain, f.Gateway, f.Gateways, f.Role)
}

// CheckRole returns an error for a role that this agent does not have.
func (f BootstrapFile) CheckRole() error {
	if f.Role == "" || f.Role.Enrols() {
		return nil
	}
	return fmt.Errorf("checking bootstrap file: this agent has no role %.50q: use a newer version of edge-agent", f.Role)
}
