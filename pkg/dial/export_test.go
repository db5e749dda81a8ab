package dial

import (
	"crypto/x509"
	"net"
)

// SetResolver makes a way resolve names with r instead of the machine's resolver.
func SetResolver(d *Dialer, r *net.Resolver) { d.resolver = r }

// SetRoots sets the CAs of a proxy with TLS.
func SetRoots(p *Proxy, roots *x509.CertPool) { p.roots = roots }

// MaxForwarded is how many connections Forward joins at the same time.
const MaxForwarded = maxForwarded
