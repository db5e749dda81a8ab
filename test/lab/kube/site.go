package kube

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// SiteAPIServer is a workload cluster in a site of its own: an etcd and an apiserver that share nothing with others.
type SiteAPIServer struct {
	*APIServer
	Etcd      *proc.Process
	workspace *workspace.Workspace
	names     []string
}

// StartSiteAPIServer starts an etcd and a kube-apiserver in a site, with additional names in its serving certificate,
// and waits until it is ready.
func StartSiteAPIServer(ctx context.Context, w *workspace.Workspace, site *netns.Site, notAfter time.Time,
	name string, names ...string,
) (*SiteAPIServer, error) {
	etcd, err := StartEtcd(ctx, w, site.Namespace)
	if err != nil {
		return nil, err
	}
	a, err := StartAPIServer(ctx, w, APIServerSpec{
		Name: name, Namespace: site.Namespace, Address: site.Address,
		Port: 6443, Etcd: etcd, Prefix: "/" + name, Names: names, NotAfter: notAfter,
	})
	if err != nil {
		return nil, err
	}
	return &SiteAPIServer{APIServer: a, Etcd: etcd, workspace: w, names: names}, nil
}

// Reissue writes another serving certificate, which an apiserver reads when it starts.
func (a *SiteAPIServer) Reissue(notAfter time.Time) error {
	all := append(append([]string{a.Endpoint.Addr().String()}, kubeadmNames...), a.names...)
	serving, err := a.CA.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver", Names: all, Usage: x509.ExtKeyUsageServerAuth,
		NotAfter: notAfter,
	})
	if err != nil {
		return err
	}
	if err := serving.Write(a.workspace.File(a.Name), "apiserver"); err != nil {
		return fmt.Errorf("writing the serving certificate of %s: %w", a.Name, err)
	}
	return nil
}
