// Package kube runs real Kubernetes programs for a lab: etcd, kube-apiserver with its own PKI, and the controllers
// that remove deleted objects. Input: a Workspace and a namespace. Output: an APIServer with an administrator's
// client. It also reads manifests and installs objects. It does not know Cluster API or Fairlead.
package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	// The networks of Services, whose family must be that of the apiserver.
	serviceRange4, serviceRange6 = "10.96.0.0/16", "fd00:10:96::/112"
)

// kubeadmNames are the names that kubeadm adds to every serving certificate.
var kubeadmNames = []string{
	"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
	"10.96.0.1", "127.0.0.1",
}

// serviceRange returns the network of the Services of an apiserver.
func serviceRange(address netip.Addr) string {
	if address.Is6() {
		return serviceRange6
	}
	return serviceRange4
}

// APIServer is a real kube-apiserver.
type APIServer struct {
	Name      string
	CA        *pki.Authority
	Namespace *netns.Namespace
	Endpoint  netip.AddrPort
	Process   *proc.Process
	Config    *rest.Config  // of an administrator in the apiserver's own network
	Client    client.Client // with that configuration
	Admin     pki.KeyPair   // the administrator's credentials
}

// APIServerSpec describes an apiserver to start.
type APIServerSpec struct {
	Name      string
	Namespace *netns.Namespace
	Address   netip.Addr
	Port      uint16
	Etcd      *proc.Process
	Prefix    string    // of its keys in etcd
	Names     []string  // in its serving certificate, beside kubeadm's
	NotAfter  time.Time // of its certificates; zero: the default
	Flags     []string  // added to the flags of a lab, and stronger
}

// URL returns the apiserver's URL in its own network.
func (a *APIServer) URL() string { return "https://" + a.Endpoint.String() }

// StartAPIServer starts a kube-apiserver with its own PKI, and waits until it is ready.
func StartAPIServer(ctx context.Context, w *workspace.Workspace, spec APIServerSpec) (*APIServer, error) {
	a := &APIServer{Name: spec.Name, Namespace: spec.Namespace, Endpoint: netip.AddrPortFrom(spec.Address, spec.Port)}
	dir := w.File(spec.Name)
	if err := a.writePKI(dir, spec.Names, spec.NotAfter); err != nil {
		return nil, fmt.Errorf("making the PKI of %s: %w", spec.Name, err)
	}
	process, err := proc.Start(proc.Spec{
		Name: spec.Name, Namespace: spec.Namespace, Program: w.Parts.RealPath("kube-apiserver"), Log: w.LogFile(spec.Name),
		Args: slices.Concat(apiServerFlags(dir), []string{
			"--etcd-prefix=" + spec.Prefix, "--bind-address=" + spec.Address.String(),
			"--advertise-address=" + spec.Address.String(), "--service-cluster-ip-range=" + serviceRange(spec.Address),
			"--secure-port=" + strconv.Itoa(int(spec.Port)),
		}, spec.Flags),
	})
	if err != nil {
		return nil, err
	}
	a.Process = process
	w.OnClose(func(context.Context) { process.Kill() })
	if err := a.connect(); err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(a.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", spec.Name, err)
	}
	return a, process.WaitReady(ctx, proc.StartTimeout, proc.Answers200(httpClient, a.URL()+"/readyz"))
}

func apiServerFlags(dir string) []string {
	file := func(name string) string { return filepath.Join(dir, name) }
	return []string{
		EtcdServers(1),
		"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"),
		"--client-ca-file=" + file("ca.crt"),
		"--service-account-key-file=" + file("sa.crt"), "--service-account-signing-key-file=" + file("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP",
		"--max-requests-inflight=1000",
	}
}

// writePKI creates the PKI that kubeadm would create, and writes the apiserver's files.
func (a *APIServer) writePKI(dir string, names []string, notAfter time.Time) (err error) {
	if a.CA, err = pki.NewAuthorityUntil("kubernetes", notAfter); err != nil {
		return err
	}
	all := append(append([]string{a.Endpoint.Addr().String()}, kubeadmNames...), names...)
	serving, err := a.CA.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver", Names: all, Usage: x509.ExtKeyUsageServerAuth,
		NotAfter: notAfter,
	})
	if err != nil {
		return err
	}
	a.Admin, err = a.CA.Issue(pki.LeafSpec{
		CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Usage: x509.ExtKeyUsageClientAuth,
		NotAfter: notAfter,
	})
	if err != nil {
		return err
	}
	kubelets, err := a.CA.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"},
		Usage: x509.ExtKeyUsageClientAuth, NotAfter: notAfter,
	})
	if err != nil {
		return err
	}
	tokens, err := pki.ServiceAccountKey()
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o700), serving.Write(dir, "apiserver"), tokens.Write(dir, "sa"),
		kubelets.Write(dir, "apiserver-kubelet-client"),
		os.WriteFile(filepath.Join(dir, "ca.crt"), a.CA.CertPEM, 0o644))
}

// Connect returns an apiserver that something else runs, such as a provider of hosted control planes. from is a network
// in which clients reach its endpoint.
func Connect(name string, from *netns.Namespace, endpoint netip.AddrPort, ca *pki.Authority) (*APIServer, error) {
	a := &APIServer{Name: name, CA: ca, Namespace: from, Endpoint: endpoint}
	var err error
	a.Admin, err = ca.Issue(pki.LeafSpec{
		CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Usage: x509.ExtKeyUsageClientAuth,
	})
	if err != nil {
		return nil, fmt.Errorf("making the administrator of %s: %w", name, err)
	}
	return a, a.connect()
}

// connect makes the administrator's client.
func (a *APIServer) connect() error {
	a.Config = &rest.Config{
		Host: a.URL(), Dial: a.Namespace.DialContext, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.CA.CertPEM, CertData: a.Admin.CertPEM, KeyData: a.Admin.KeyPEM},
	}
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), corev1.AddToScheme(known), rbacv1.AddToScheme(known),
		clusterv1.AddToScheme(known),
		v1alpha1.AddToScheme(known)); err != nil {
		return fmt.Errorf("making a client of %s: %w", a.Name, err)
	}
	var err error
	if a.Client, err = client.New(a.Config, client.Options{Scheme: known}); err != nil {
		return fmt.Errorf("making a client of %s: %w", a.Name, err)
	}
	return nil
}
