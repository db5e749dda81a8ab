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

// Question is the input of Choose.
type Question struct {
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
func Choose(q Question) Choice {
	if q.Mode != "" && q.Mode != v1alpha1.KubeconfigModeAuto {
		return Choice{
			Mode:    q.Mode,
			Name:    q.Hostname,
			Reason:  v1alpha1.ReasonConfigured,
			Message: fmt.Sprintf("%s: set by spec.kubeconfig.mode", q.Mode),
		}
	}
	before := NameOf(q.Before)
	switch {
	case len(q.Certificates) > 0:
	case before != "" && q.mayUse(before):
		return Choice{Mode: v1alpha1.KubeconfigModeSNI, Name: before, EndpointName: q.endpointName(before)}
	case q.Before.Mode == v1alpha1.KubeconfigModeConnect:
		c := Choice{Mode: q.Before.Mode, Name: q.Hostname}
		if q.Before.EndpointName == q.Endpoint && q.EndpointHolder == "" {
			c.EndpointName = q.Before.EndpointName
		}
		return c
	case q.Before.Mode != "":
		return q.connect(
			v1alpha1.ReasonNoEvidence, "no edge observes the serving certificate now, and connect works with every certificate",
		)
	default:
		return q.connect(
			v1alpha1.ReasonNoEvidence,
			"no edge has observed the serving certificate yet, and connect works with every certificate",
		)
	}
	for _, name := range slices.Concat([]string{before, q.Hostname}, q.Names, []string{q.Endpoint}) {
		if q.mayUse(name) && q.inAll(name) {
			return q.sni(name)
		}
	}
	return q.lacking()
}

// sni returns the choice of a name that is served and in every certificate.
func (q Question) sni(name string) Choice {
	c := Choice{
		Mode:         v1alpha1.KubeconfigModeSNI,
		Name:         name,
		EndpointName: q.endpointName(name),
		Reason:       v1alpha1.ReasonCertificateHasHostname,
	}
	switch {
	case name == q.Hostname:
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
func (q Question) lacking() Choice {
	endpoint := ""
	message := fmt.Sprintf(
		"the serving certificate has neither the tunnel hostname %s nor an extra name of the Tunnel; it has %s", q.Hostname,
		strings.Join(q.certificateNames(), ", "),
	)
	if model.ValidateDNSName(q.Endpoint) == nil && q.inAll(q.Endpoint) {
		switch {
		case q.EndpointHolder != "":
			message += fmt.Sprintf(
				"; %s is in it, the Cluster's endpoint, but %s has that name too", q.Endpoint, q.EndpointHolder,
			)
		default:
			endpoint = q.Endpoint
			message += fmt.Sprintf(
				"; %s is in it, the Cluster's endpoint, and mode sni follows once it is served as one more name of the tunnel",
				endpoint,
			)
		}
	}
	c := q.connect(
		v1alpha1.ReasonCertificateLacksHostname,
		message+": add the hostname to the names of the certificate (certSANs) for mode sni",
	)
	c.EndpointName = endpoint
	return c
}

func (q Question) connect(reason, why string) Choice {
	return Choice{Mode: v1alpha1.KubeconfigModeConnect, Name: q.Hostname, Reason: reason, Message: "connect: " + why}
}

// mayUse reports whether the gateways route a name to this tunnel.
func (q Question) mayUse(name string) bool {
	return name != "" && (name == q.Hostname || slices.Contains(q.Names, name) ||
		(name == q.Endpoint && q.EndpointServed && model.ValidateDNSName(name) == nil))
}

// endpointName returns name if it is served only as the endpoint's name, and so must stay on record, else "".
func (q Question) endpointName(name string) string {
	if name == q.Hostname || slices.Contains(q.Names, name) {
		return ""
	}
	return name
}

// inAll reports whether every certificate is valid for a name. With several apiservers a client may reach any of them.
func (q Question) inAll(name string) bool { return Covered(q.Certificates, name) }

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
func (q Question) certificateNames() []string {
	var all []string
	for _, name := range q.Certificates[0] {
		if !slices.ContainsFunc(q.Certificates, func(names []string) bool { return !slices.Contains(names, name) }) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return []string{"no name in common with those of the other apiservers"}
	}
	return all
}
