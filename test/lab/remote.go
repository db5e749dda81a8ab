package lab

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"
)

// SiteAPIServer is a workload cluster in a machine room of its own: an etcd and an apiserver that share nothing with others.
type SiteAPIServer struct {
	*APIServer
	Etcd  *Process
	lab   *Lab
	names []string
}

// StartSiteAPIServer starts an etcd and a kube-apiserver in a site, with further names in its serving certificate, and waits until it is ready.
func (l *Lab) StartSiteAPIServer(ctx context.Context, site *Site, name string, names ...string) (*SiteAPIServer, error) {
	etcd, err := l.startEtcd(ctx, site.Namespace)
	if err != nil {
		return nil, err
	}
	a, err := l.startAPIServer(ctx, apiServerSpec{name: name, namespace: site.Namespace, address: site.Address, port: 6443, etcd: etcd, prefix: "/" + name, names: names})
	if err != nil {
		return nil, err
	}
	return &SiteAPIServer{APIServer: a, Etcd: etcd, lab: l, names: names}, nil
}

// Up starts an apiserver again whose process was killed, and doesn't wait for it.
func (l *Lab) Up(ctx context.Context, a *APIServer) error {
	process, err := l.Restart(a.Process)
	if err != nil {
		return err
	}
	a.Process = process
	return nil
}

// Reissue writes another serving certificate, which an apiserver reads when it starts.
func (a *SiteAPIServer) Reissue(notAfter time.Time) error {
	all := append(append([]string{a.Endpoint.Addr().String()}, kubeadmNames...), a.names...)
	serving, err := a.CA.Issue(LeafSpec{CommonName: "kube-apiserver", Names: all, Usage: x509.ExtKeyUsageServerAuth, NotAfter: notAfter})
	if err != nil {
		return err
	}
	if err := serving.write(a.lab.file(a.Name), "apiserver"); err != nil {
		return fmt.Errorf("writing the serving certificate of %s: %w", a.Name, err)
	}
	return nil
}

// Program is the path of one of our own programs.
func (l *Lab) Program(name string) string { return l.parts.fairlead(name) }

// Root is the repository's folder.
func (l *Lab) Root() string { return l.parts.Root }

// LoseGateway makes a gateway's address swallow every packet of the management network, until back is called.
func (l *Lab) LoseGateway(ctx context.Context, i int) (back func(context.Context) error, err error) {
	address := InsideAddress(i).String()
	back = func(ctx context.Context) error {
		return l.Network.Management.ip(ctx, "neighbour", "delete", address, "dev", "mgmt")
	}
	return back, l.Network.Management.ip(ctx, "neighbour", "replace", address, "lladdr", "02:00:00:00:00:fe", "dev", "mgmt", "nud", "permanent")
}

// Restart starts a process again that has ended.
func (l *Lab) Restart(p *Process) (*Process, error) {
	next, err := Start(p.Spec)
	if err != nil {
		return nil, err
	}
	l.onClose(func(context.Context) { next.Kill() })
	return next, nil
}

// InspectAddress is where an xds-server of the lab serves inspection, in the management network.
func InspectAddress(i int) string { return host("127.0.0.1", 9460+i) }

// PageAddress is where an xds-server of a lab with pages serves the status page, in the management network.
func PageAddress(i int) string { return host("127.0.0.1", 9440+i) }
