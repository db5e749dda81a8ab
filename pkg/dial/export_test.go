package dial

import (
	"crypto/x509"
	"net"
)

// SetResolver makes a way look names up elsewhere than the machine does.
func SetResolver(w *Way, r *net.Resolver) { w.resolver = r }

// SetRoots says whom to take for a proxy with TLS.
func SetRoots(p *Proxy, roots *x509.CertPool) { p.roots = roots }
