package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// BootstrapFile is the one file that an edge needs for a tunnel, as it stands in the bootstrap Secret of a Cluster.
type BootstrapFile struct {
	ID           string    `json:"id"`           // Tunnel.spec.id
	Gateway      Addresses `json:"gateway"`      // host:port of the gateways' public port, one or several
	Gateways     Addresses `json:"gateways"`     // the same
	TunnelDomain string    `json:"tunnelDomain"` // the installation's
	Token        string    `json:"token"`        // the bootstrap token
	CA           string    `json:"ca"`           // PEM, of the control channel
}

// Addresses are one or several addresses: a string, or a list of strings.
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

// ReadBootstrapFile reads the file. Fields that it does not know are left to newer agents. No error holds any of what was read.
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

// MaxBootstrapFile is room for several CAs, of about 1 KiB each.
const MaxBootstrapFile = 256 << 10

// errNoBootstrapFile is what every file that can't be read comes to: a parser's own words could hold what is in it.
var errNoBootstrapFile = errors.New("reading bootstrap file: it is not YAML with the fields id, gateway, tunnelDomain, token and ca")

// ParseBootstrapFile is ReadBootstrapFile for what was read.
func ParseBootstrapFile(data []byte) (f BootstrapFile, err error) {
	if len(data) > MaxBootstrapFile || yaml.Unmarshal(data, &f) != nil {
		return BootstrapFile{}, errNoBootstrapFile
	}
	return f, nil
}

// Way is what of a file is read once.
func (f BootstrapFile) Way() string {
	return fmt.Sprint(f.ID, f.TunnelDomain, f.Gateway, f.Gateways)
}
