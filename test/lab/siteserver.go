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
	Etcd      *Process
	workspace *Workspace
	names     []string
}

// startSiteAPIServer starts an etcd and a kube-apiserver in a site, with further names in its serving certificate, and waits until it is ready.
func startSiteAPIServer(ctx context.Context, w *Workspace, site *Site, notAfter time.Time, name string, names ...string) (*SiteAPIServer, error) {
	etcd, err := startEtcd(ctx, w, site.Namespace)
	if err != nil {
		return nil, err
	}
	a, err := startAPIServer(ctx, w, apiServerSpec{name: name, namespace: site.Namespace, address: site.Address, port: 6443, etcd: etcd, prefix: "/" + name, names: names, notAfter: notAfter})
	if err != nil {
		return nil, err
	}
	return &SiteAPIServer{APIServer: a, Etcd: etcd, workspace: w, names: names}, nil
}

// Reissue writes another serving certificate, which an apiserver reads when it starts.
func (a *SiteAPIServer) Reissue(notAfter time.Time) error {
	all := append(append([]string{a.Endpoint.Addr().String()}, kubeadmNames...), a.names...)
	serving, err := a.CA.Issue(LeafSpec{CommonName: "kube-apiserver", Names: all, Usage: x509.ExtKeyUsageServerAuth, NotAfter: notAfter})
	if err != nil {
		return err
	}
	if err := serving.write(a.workspace.File(a.Name), "apiserver"); err != nil {
		return fmt.Errorf("writing the serving certificate of %s: %w", a.Name, err)
	}
	return nil
}
