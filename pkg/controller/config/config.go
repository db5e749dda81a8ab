// Package config holds the settings of one controller process. It validates them and derives the duration of the phases
// of a CA rotation. It reads no flag, file or object.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// TunnelDNS selects how the controller decides whether clients can resolve tunnel hostnames.
type TunnelDNS string

const (
	// TunnelDNSAuto looks up each hostname.
	TunnelDNSAuto TunnelDNS = "auto"
	// TunnelDNSYes assumes that every hostname resolves to the gateways.
	TunnelDNSYes TunnelDNS = "yes"
	// TunnelDNSNo assumes that no hostname does.
	TunnelDNSNo TunnelDNS = "no"
)

// minLeafLifetime is short enough for tests of rotation. Certificates state their end in whole seconds.
const minLeafLifetime = time.Second

// Config holds the settings of an installation. Optional fields are documented as such.
type Config struct {
	// NoTunnels selects an installation that only writes kubeconfigs, for private networks of the user: it has no
	// gateways, CA or xds-servers, and all fields below that concern these are empty.
	NoTunnels     bool
	Domain        model.TunnelDomain
	Namespace     string         // of the installation's own objects
	Public        model.Endpoint // where edges reach the gateways
	APIServer     model.Endpoint // where clients reach the gateways' apiserver listener
	Connect       model.Endpoint // where clients reach the gateways' connect listener
	PublicService string         // labels, annotations and spec, as YAML, of the Service for edges; empty: not managed
	DNS           TunnelDNS
	AllClusters   bool // Clusters without the label get a tunnel too
	LeafLifetime  time.Duration
	CALifetime    time.Duration // of a CA that the controller creates; zero: 10 years
	CAOverlap     time.Duration // how long the old CA stays trusted beside the new one; at least a leaf lifetime
	// NoCrossSign is for a previous CA whose key is stolen: it vouches for no CA after it.
	NoCrossSign   bool
	TokenLifetime time.Duration
	TokenUses     int32 // how many edges may enrol with one bootstrap token
	// EdgeImage is the image of the edges in the Secrets for ClusterResourceSets; empty: they contain no Deployment.
	EdgeImage string
	// BootReportAfter is the time allowed between the infrastructure of a machine being ready and its first boot
	// report; zero: 10 minutes.
	BootReportAfter time.Duration
	XDSServerUser   string // the one user whose CertificateSigningRequests are processed
	// XDSServer is a name that resolves to the addresses of all xds-servers, which the controller queries for the state
	// of edges and gateways. Zero: the state of tunnels stays unknown.
	XDSServer model.Endpoint
	// GatewaysPerTunnel is model.Installation.GatewaysPerTunnel of the xds-servers; 0: all.
	GatewaysPerTunnel int
	// StatusWrites bounds the writes of live state to Tunnels and Clusters, per second and in total; zero: 150.
	StatusWrites int
	// RolloutImmediate applies a change of what all nodes run at once instead of in waves. RolloutSoak is for how long
	// each phase of a rollout is watched; zero: rollout.DefaultSoak.
	RolloutImmediate bool
	RolloutSoak      time.Duration
	// DialNetworks lists the networks where the controller may dial addresses that Tunnels name, such as https proxies;
	// empty: it dials none of them.
	DialNetworks []netip.Prefix
	// APIServerCIDRs are the networks in which gateways may dial the endpoints of Clusters, for the machines of
	// RemoteNetworks; empty: they dial none.
	APIServerCIDRs []netip.Prefix
	NeverDial      func(netip.Addr) bool // for tests, whose servers are on loopback; nil: neverDialled
	// WebhookListen is host:port of the webhook for kubeconfigs; empty: no webhook.
	WebhookListen string
	// WebhookCertDir is a folder with tls.crt and tls.key that another program, such as cert-manager, creates, replaces
	// and makes apiservers trust; empty: the controller does so itself.
	WebhookCertDir string
	// Metrics is the registry of the metrics; nil: none. PerCluster adds metrics for each workload cluster.
	Metrics    prometheus.Registerer
	PerCluster bool
	// Now is the apiserver's clock, see Clock; nil: time.Now.
	Now func() time.Time
}

// Gateways returns where clients reach the gateways; it is zero without tunnels.
func (c Config) Gateways() kubeconfig.Gateways {
	return kubeconfig.Gateways{APIServer: c.APIServer, Connect: c.Connect}
}

// Validate returns all errors of a Config, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Namespace == "" {
		errs = append(errs, errors.New("the namespace is empty"))
	}
	if c.WebhookListen != "" {
		if _, _, err := SplitListen(c.WebhookListen); err != nil {
			errs = append(errs, err)
		}
	}
	if c.WebhookCertDir != "" && c.WebhookListen == "" {
		errs = append(errs, errors.New("the webhook has a certificate, but no address to listen on"))
	}
	if c.RolloutSoak != 0 && c.RolloutSoak < rollout.MinSoak {
		errs = append(errs, fmt.Errorf("a rollout cannot be watched for %s: %s is the least", c.RolloutSoak, rollout.MinSoak))
	}
	if c.GatewaysPerTunnel < 0 || c.GatewaysPerTunnel > model.MaxGateways {
		errs = append(
			errs,
			fmt.Errorf("gateways of a tunnel: %d is not from 1 to %d, or 0 for all", c.GatewaysPerTunnel, model.MaxGateways),
		)
	}
	if c.StatusWrites < 0 {
		errs = append(errs, fmt.Errorf("%d writes of status per second: the number is negative", c.StatusWrites))
	}
	if c.NoTunnels {
		if c.Domain != "" || c.Gateways() != (kubeconfig.Gateways{}) || c.Public != (model.Endpoint{}) ||
			c.XDSServer != (model.Endpoint{}) {
			errs = append(
				errs,
				errors.New("an installation without tunnels has no tunnel domain and no addresses of gateways or xds-servers"),
			)
		}
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, c.validateTunnels()...)...)
}

// validateTunnels returns all errors of the settings for tunnels.
func (c Config) validateTunnels() []error {
	errs := []error{c.Domain.Validate()}
	for name, e := range map[string]model.Endpoint{
		"public address": c.Public, "apiserver address": c.APIServer, "connect address": c.Connect,
	} {
		if err := e.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s of the gateways: %w", name, err))
		}
	}
	if c.XDSServerUser == "" {
		errs = append(errs, errors.New("the user of the xds-server is empty"))
	}
	if c.DNS != TunnelDNSAuto && c.DNS != TunnelDNSYes && c.DNS != TunnelDNSNo {
		errs = append(errs, fmt.Errorf("tunnel DNS %q is invalid: must be auto, yes or no", c.DNS))
	}
	if c.XDSServer != (model.Endpoint{}) {
		if err := c.XDSServer.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("address of the xds-servers: %w", err))
		}
	}
	if c.LeafLifetime < minLeafLifetime {
		errs = append(errs, fmt.Errorf("leaf lifetime %s is less than %s", c.LeafLifetime, minLeafLifetime))
	}
	if c.CAOverlap < 0 {
		errs = append(errs, fmt.Errorf("CA overlap %s is negative", c.CAOverlap))
	}
	// Half of a CA's life is then left for the next rotation, however late it begins.
	if t := c.Timing(); t.Life < 2*t.Total() {
		errs = append(
			errs,
			fmt.Errorf(
				"CA lifetime %s is less than twice the duration of a rotation, which is %s with this CA overlap and leaf lifetime",
				t.Life, t.Total(),
			),
		)
	}
	if c.TokenLifetime < time.Minute {
		errs = append(errs, fmt.Errorf("token lifetime %s is less than 1m", c.TokenLifetime))
	}
	if c.TokenUses < 1 {
		errs = append(errs, fmt.Errorf("token uses: %d is less than 1", c.TokenUses))
	}
	unfit := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("#'\"{}", r) }
	if strings.ContainsFunc(c.EdgeImage, unfit) {
		errs = append(errs, fmt.Errorf("edge image %q is no reference of an image", c.EdgeImage))
	}
	if c.BootReportAfter < 0 {
		errs = append(errs, fmt.Errorf("a machine cannot report %s before its infrastructure is ready", -c.BootReportAfter))
	}
	return errs
}

// GatewayAddresses returns the addresses of the gateways that are configured as IP addresses.
func (c Config) GatewayAddresses() []netip.Addr {
	return model.Addresses(c.Public, c.APIServer, c.Connect)
}

// Clock returns Now, or time.Now if it is nil.
func (c Config) Clock() func() time.Time {
	if c.Now == nil {
		return time.Now
	}
	return c.Now
}

// SplitListen splits host:port. The host may be empty. A port that is not a TCP port is an error.
func SplitListen(listen string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("address of the webhook: %w", err)
	}
	if port, err = strconv.Atoi(text); err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("address of the webhook: %q is not a TCP port", text)
	}
	return host, port, nil
}
