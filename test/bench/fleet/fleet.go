// Package fleet is the base of benchmarks with many workload clusters: an installation with real programs (test/lab),
// without Cluster API's managers, and synthetic edges (test/synthetic). The edges have certificates of the
// installation's CA, and each has an in-memory apiserver behind it.
package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/synthetic"
)

// Domain is the tunnel domain.
const Domain = model.TunnelDomain("tunnels.example.test")

const (
	// connecting is how many edges open a TCP connection at the same time. Each holds a thread of this process.
	connecting = 256
	// pollInterval is the time between two counts of Tunnels.
	pollInterval = 200 * time.Millisecond
	// lifetime of certificates is longer than any benchmark.
	lifetime = 12 * time.Hour
)

// World is an installation with synthetic edges. The caller must close it.
type World struct {
	*lab.Lab
	Roots *x509.CertPool // contains only the installation's CA
	CA    *certs.CA
	API   *synthetic.API
	// Fleets are the edges' connections to each gateway, and Fleet is the first of them, which is the only one by default.
	Fleets  []*synthetic.Fleet
	Fleet   *synthetic.Fleet
	key     *ecdsa.PrivateKey // of all leaves
	options Options
}

// Options are what differs between installations.
type Options struct {
	Tunnels int // that each edge keeps, of those that are added later
	// Serving is the certificate of the workload apiservers; nil: the installation's CA issues one for the name
	// kubernetes.
	Serving    *tls.Certificate
	Controller []string // additional flags of the controller
	Metrics    bool     // programs serve metrics
	// Gateways is the number of gateways, one by default, and GatewaysPerTunnel to how many of them an edge keeps
	// tunnels; 0: to all.
	Gateways, GatewaysPerTunnel int
}

// New starts an installation and a fleet without edges.
func New(ctx context.Context, o Options) (_ *World, err error) {
	l, err := lab.New(ctx, lab.Options{
		Lean: true, TunnelDomain: string(Domain), LogLevel: "warn", ControllerFlags: o.Controller, Metrics: o.Metrics,
		Gateways: o.Gateways, GatewaysPerTunnel: o.GatewaysPerTunnel,
	})
	if err != nil {
		return nil, err
	}
	w := &World{Lab: l, options: o}
	defer func() {
		if err != nil {
			w.Close(ctx)
		}
	}()
	if err := l.Start(ctx); err != nil {
		kept, keeping := l.KeepLogs()
		return nil, errors.Join(fmt.Errorf("%w; logs are in %s", err, kept), keeping)
	}
	if w.CA, err = l.CA(ctx); err != nil {
		return nil, err
	}
	w.Roots = x509.NewCertPool()
	w.Roots.AppendCertsFromPEM(w.CA.CertPEM())
	if w.key, err = certs.NewKey(); err != nil {
		return nil, err
	}
	serving := o.Serving
	if serving == nil {
		if serving, err = w.Leaf(certs.Leaf{
			CommonName: "kubernetes", DNSNames: []string{"kubernetes"},
			Server: true,
		}); err != nil {
			return nil, err
		}
	}
	w.API = synthetic.NewAPI(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving, nil })
	slots := make(chan struct{}, connecting)
	for i := range l.Gateways {
		public := netns.HostPort(netns.PublicAddress(i).String(), netns.PublicPort)
		one, err := synthetic.New(synthetic.Options{
			Domain: Domain, Gateway: netns.GatewayReplica(i), Roots: w.Roots, API: w.API, Tunnels: o.Tunnels,
			Dial: func(ctx context.Context) (net.Conn, error) {
				slots <- struct{}{}
				defer func() { <-slots }()
				return l.Network.Workload.DialContext(ctx, "tcp", public)
			},
		})
		if err != nil {
			return nil, err
		}
		w.Fleets = append(w.Fleets, one)
	}
	w.Fleet = w.Fleets[0]
	return w, nil
}

// Close stops everything.
func (w *World) Close(ctx context.Context) {
	for _, f := range w.Fleets {
		_ = f.Close()
	}
	if w.API != nil {
		_ = w.API.Close()
	}
	w.Lab.Close(context.WithoutCancel(ctx))
}

// Leaf issues a certificate. All certificates have the same key.
func (w *World) Leaf(leaf certs.Leaf) (*tls.Certificate, error) {
	identity, err := w.Identity(leaf)
	if err != nil {
		return nil, err
	}
	certificate := identity.TLSCertificate()
	return &certificate, nil
}

// Identity is Leaf in a form that can be written to files.
func (w *World) Identity(leaf certs.Leaf) (certs.Identity, error) {
	leaf.NotBefore, leaf.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(lifetime)
	chain, err := w.CA.Issue(w.key.Public(), leaf)
	if err != nil {
		return certs.Identity{}, err
	}
	return certs.NewIdentity(chain, w.key)
}

// Renewed adds an edge with the identity of another one and a leaf that was issued later. It does not dial yet.
func (w *World) Renewed(edge *synthetic.Edge, chain []byte) (*synthetic.Edge, error) {
	identity, err := certs.NewIdentity(chain, w.key)
	if err != nil {
		return nil, err
	}
	certificate := identity.TLSCertificate()
	return w.Fleet.Add(synthetic.Spec{Node: edge.Node, ID: edge.ID, Certificate: &certificate}), nil
}

// CSR returns a request for a certificate of the key that all edges have.
func (w *World) CSR() ([]byte, error) { return certs.NewCSR(w.key) }

// Edge adds an edge of a tunnel, for the first gateway. It does not dial yet.
func (w *World) Edge(id string) (*synthetic.Edge, error) {
	spec, err := w.spec(id)
	if err != nil {
		return nil, err
	}
	return w.Fleet.Add(spec), nil
}

// Edges adds an edge of a tunnel for each gateway that the tunnel is assigned to. They have one identity. They do not
// dial yet.
func (w *World) Edges(id string) (all []*synthetic.Edge, err error) {
	spec, err := w.spec(id)
	if err != nil {
		return nil, err
	}
	for _, i := range w.Assigned(id) {
		all = append(all, w.Fleets[i].Add(spec))
	}
	return all, nil
}

// Assigned returns the numbers of the gateways that a tunnel is assigned to.
func (w *World) Assigned(id string) []int {
	return lab.Assigned(id, w.options.GatewaysPerTunnel, len(w.Fleets))
}

// spec returns a new edge of a tunnel.
func (w *World) spec(id string) (synthetic.Spec, error) {
	return synthetic.NewSpec(w.CA, w.key, Domain, id, lifetime)
}

// Create creates objects in the management cluster. Existing objects are not changed.
func (w *World) Create(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		if err := w.Management.Client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// CreateNamespace creates a namespace in the management cluster.
func (w *World) CreateNamespace(ctx context.Context, name string) error {
	return w.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// Tunnels waits until n Clusters of a namespace have a Tunnel. It returns the ids of the Tunnels by name.
func (w *World) Tunnels(
	ctx context.Context, namespace string, n int, timeout time.Duration,
) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for most := 0; ; {
		count, err := w.count(ctx, namespace)
		if most = max(most, count); err == nil && count >= n {
			ids, err := w.ids(ctx, namespace)
			if err != nil || len(ids) >= n {
				return ids, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for Tunnels: %d of %d Clusters have one: %w", most, n, errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// count lists one Tunnel and reads the number of the remaining ones: listing thousands would load the apiserver that is
// measured.
func (w *World) count(ctx context.Context, namespace string) (int, error) {
	var one metav1.PartialObjectMetadataList
	one.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TunnelList"))
	if err := w.Management.Client.List(ctx, &one, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return 0, err
	}
	return len(one.Items) + int(ptr.Deref(one.RemainingItemCount, 0)), nil
}

func (w *World) ids(ctx context.Context, namespace string) (map[string]string, error) {
	var all v1alpha1.TunnelList
	if err := w.Management.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	ids := map[string]string{}
	for _, t := range all.Items {
		if t.Spec.ID != "" {
			ids[t.Name] = t.Spec.ID
		}
	}
	return ids, nil
}
