// Package controller writes everything that Fairlead writes in a management cluster: Tunnels and their status,
// kubeconfig and bootstrap Secrets, what belongs to the installation, and signatures on CertificateSigningRequests. In go
// the objects of the management cluster, out come writes to them. It serves no Envoy and talks to no edge.
//
// Every reconciliation is level-based: it looks at what there is, decides once, and writes only what differs.
package controller

import (
	"errors"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// TunnelDNS says whether tunnel hostnames can be resolved where clients are.
type TunnelDNS string

const (
	// TunnelDNSAuto looks each hostname up.
	TunnelDNSAuto TunnelDNS = "auto"
	// TunnelDNSYes takes every hostname to resolve to the gateways.
	TunnelDNSYes TunnelDNS = "yes"
	// TunnelDNSNo takes none to.
	TunnelDNSNo TunnelDNS = "no"
)

// Config is what the controller knows about its installation. All of it is needed but AllClusters.
type Config struct {
	Domain        model.TunnelDomain
	Namespace     string         // of the installation's own objects
	Public        model.Endpoint // where edges reach the gateways
	APIServer     model.Endpoint // where clients reach the gateways' apiserver listener
	Connect       model.Endpoint // where clients reach the gateways' connect listener
	DNS           TunnelDNS
	AllClusters   bool // Clusters without the label get a tunnel too
	LeafLifetime  time.Duration
	TokenLifetime time.Duration
	TokenUses     int32  // how many edges may enrol with one bootstrap token
	XDSServerUser string // the one user whose CertificateSigningRequests are looked at
}

// Validate joins everything that is wrong with a Config.
func (c Config) Validate() error {
	errs := []error{c.Domain.Validate()}
	for name, e := range map[string]model.Endpoint{"public address": c.Public, "apiserver address": c.APIServer, "connect address": c.Connect} {
		if err := e.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s of the gateways: %w", name, err))
		}
	}
	if c.Namespace == "" {
		errs = append(errs, errors.New("there is no namespace"))
	}
	if c.XDSServerUser == "" {
		errs = append(errs, errors.New("there is no user of the xds-server"))
	}
	if c.DNS != TunnelDNSAuto && c.DNS != TunnelDNSYes && c.DNS != TunnelDNSNo {
		errs = append(errs, fmt.Errorf("tunnel DNS %q is neither auto nor yes nor no", c.DNS))
	}
	// The apiserver takes no CertificateSigningRequest of less than 10 minutes, and renewal needs time for retries.
	if c.LeafLifetime < 10*time.Minute {
		errs = append(errs, fmt.Errorf("leaf lifetime %s is less than 10m", c.LeafLifetime))
	}
	if c.TokenLifetime < time.Minute {
		errs = append(errs, fmt.Errorf("token lifetime %s is less than 1m", c.TokenLifetime))
	}
	if c.TokenUses < 1 {
		errs = append(errs, fmt.Errorf("a token of %d uses is of no use", c.TokenUses))
	}
	return errors.Join(errs...)
}
