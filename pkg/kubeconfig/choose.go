package kubeconfig

import (
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Evidence is the input of Choose.
type Evidence struct {
	Mode     v1alpha1.KubeconfigMode // what the Tunnel requests
	Hostname string                  // the tunnel hostname
	// Names are the Tunnel's extra names that are served: see model.WorkloadCluster.Names.
	Names []string
	// Endpoint is the host of the Cluster's endpoint, in lower case. It counts only if it is a DNS name.
	// EndpointServed reports whether it is already served as a further name of the tunnel. EndpointHolder is another
	// Cluster or Tunnel with this name, or "".
	Endpoint       string
	EndpointServed bool
	EndpointHolder string
	// Certificates are the names in each serving certificate that an edge reports, or has reported recently.
	Certificates [][]string
	Before       v1alpha1.KubeconfigStatus // what is on record
}

// Choice is the chosen mode, with its reason.
type Choice struct {
	Mode         v1alpha1.KubeconfigMode
	Name         string // the name that the gateways route
	EndpointName string // a further name to serve
	// Reason and Message are for the condition KubeconfigMode. If Reason is empty, the condition must not change.
	Reason, Message string
}

// Choose chooses a mode and a name. Mode auto depends on evidence: it chooses sni if every certificate contains the
// hostname or another name of the tunnel, else connect, which works with every certificate. Without evidence the
// previous choice stays. A name in use stays as long as it is valid, because every change takes time.
func Choose(e Evidence) Choice {
	if e.Mode != "" && e.Mode != v1alpha1.KubeconfigModeAuto {
		return Choice{
			Mode:    e.Mode,
			Name:    e.Hostname,
			Reason:  v1alpha1.ReasonConfigured,
			Message: fmt.Sprintf("%s: set by spec.kubeconfig.mode", e.Mode),
		}
	}
	before := NameOf(e.Before)
	switch {
	case len(e.Certificates) > 0:
	case before != "" && e.mayUse(before):
		return Choice{Mode: v1alpha1.KubeconfigModeSNI, Name: before, EndpointName: e.endpointName(before)}
	case e.Before.Mode == v1alpha1.KubeconfigModeConnect:
		c := Choice{Mode: e.Before.Mode, Name: e.Hostname}
		if e.Before.EndpointName == e.Endpoint && e.EndpointHolder == "" {
			c.EndpointName = e.Before.EndpointName
		}
		return c
	case e.Before.Mode != "":
		return e.connect(
			v1alpha1.ReasonNoEvidence, "no edge observes the serving certificate now, and connect works with every certificate",
		)
	default:
		return e.connect(
			v1alpha1.ReasonNoEvidence,
			"no edge has observed the serving certificate yet, and connect works with every certificate",
		)
	}
	for _, name := range slices.Concat([]string{before, e.Hostname}, e.Names, []string{e.Endpoint}) {
		if e.mayUse(name) && e.inAll(name) {
			return e.sni(name)
		}
	}
	return e.lacking()
}

// sni returns the choice of a name that is served and in every certificate.
func (e Evidence) sni(name string) Choice {
	c := Choice{
		Mode:         v1alpha1.KubeconfigModeSNI,
		Name:         name,
		EndpointName: e.endpointName(name),
		Reason:       v1alpha1.ReasonCertificateHasHostname,
	}
	switch {
	case name == e.Hostname:
		c.Message = fmt.Sprintf("sni: the serving certificate has the tunnel hostname %s", name)
	case c.EndpointName == "":
		c.Message = fmt.Sprintf("sni: the serving certificate has the extra name %s", name)
	default:
		c.Reason = v1alpha1.ReasonCertificateHasEndpoint
		c.Message = fmt.Sprintf(
			"sni: the serving certificate has %s, the Cluster's endpoint, which no other Cluster has; it is served as one "+
				"more name of the tunnel",
			name,
		)
	}
	return c
}

// lacking returns the choice if no name that is served is in every certificate.
func (e Evidence) lacking() Choice {
	endpoint := ""
	message := fmt.Sprintf(
		"the serving certificate has neither the tunnel hostname %s nor an extra name of the Tunnel; it has %s", e.Hostname,
		strings.Join(e.certificateNames(), ", "),
	)
	if model.ValidateDNSName(e.Endpoint) == nil && e.inAll(e.Endpoint) {
		switch {
		case e.EndpointHolder != "":
			message += fmt.Sprintf(
				"; %s is in it, the Cluster's endpoint, but %s has that name too", e.Endpoint, e.EndpointHolder,
			)
		default:
			endpoint = e.Endpoint
			message += fmt.Sprintf(
				"; %s is in it, the Cluster's endpoint, and mode sni follows once it is served as one more name of the tunnel",
				endpoint,
			)
		}
	}
	c := e.connect(
		v1alpha1.ReasonCertificateLacksHostname,
		message+": add the hostname to the names of the certificate (certSANs) for mode sni",
	)
	c.EndpointName = endpoint
	return c
}

func (e Evidence) connect(reason, why string) Choice {
	return Choice{Mode: v1alpha1.KubeconfigModeConnect, Name: e.Hostname, Reason: reason, Message: "connect: " + why}
}

// mayUse reports whether the gateways route a name to this tunnel.
func (e Evidence) mayUse(name string) bool {
	return name != "" && (name == e.Hostname || slices.Contains(e.Names, name) ||
		(name == e.Endpoint && e.EndpointServed && model.ValidateDNSName(name) == nil))
}

// endpointName returns name if it is served only as the endpoint's name, and so must stay on record, else "".
func (e Evidence) endpointName(name string) string {
	if name == e.Hostname || slices.Contains(e.Names, name) {
		return ""
	}
	return name
}

// inAll reports whether every certificate is valid for a name. With several apiservers a client may reach any of them.
func (e Evidence) inAll(name string) bool { return Covered(e.Certificates, name) }

// Covered reports whether every certificate, given as its names, is valid for a host. Without certificates it is true.
func Covered(certificates [][]string, host string) bool {
	return !slices.ContainsFunc(certificates, func(names []string) bool { return !covers(names, host) })
}

// covers reports whether a certificate with these names is valid for a host, by the rules of X.509: a wildcard stands
// for one label.
func covers(names []string, host string) bool {
	var certificate x509.Certificate
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			certificate.IPAddresses = append(certificate.IPAddresses, ip)
		} else {
			certificate.DNSNames = append(certificate.DNSNames, name)
		}
	}
	return certificate.VerifyHostname(host) == nil
}

// certificateNames returns the names that are in every certificate.
func (e Evidence) certificateNames() []string {
	var all []string
	for _, name := range e.Certificates[0] {
		if !slices.ContainsFunc(e.Certificates, func(names []string) bool { return !slices.Contains(names, name) }) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return []string{"no name in common with those of the other apiservers"}
	}
	return all
}
