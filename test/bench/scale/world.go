package scale

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/synthetic"
)

const (
	domain    = model.TunnelDomain("tunnels.example.test")
	namespace = "fleet"
	xdsPort   = 18000
	// creating is how many Clusters are created at a time.
	creating = 32
	// patience bounds every wait but those for all of thousands.
	patience = time.Minute
	// allPatience bounds those, for each workload cluster.
	allPatience = 200 * time.Millisecond
)

// world is an installation with synthetic edges.
type world struct {
	*lab.Lab
	ca    *certs.CA
	key   *ecdsa.PrivateKey // of all leaves
	api   *synthetic.API
	fleet *synthetic.Fleet
	roots *x509.CertPool
}

func newWorld(ctx context.Context, perEdge int) (_ *world, err error) {
	l, err := lab.New(ctx, lab.Options{Lean: true, TunnelDomain: string(domain), LogLevel: "warn"})
	if err != nil {
		return nil, err
	}
	w := &world{Lab: l}
	defer func() {
		if err != nil {
			w.close(ctx)
		}
	}()
	if err := l.Start(ctx); err != nil {
		kept, keeping := l.KeepLogs()
		return nil, errors.Join(fmt.Errorf("%w; logs are in %s", err, kept), keeping)
	}
	if err := w.readCA(ctx); err != nil {
		return nil, err
	}
	serving, err := w.leaf(certs.Leaf{CommonName: "kubernetes", DNSNames: []string{"kubernetes"}, Server: true})
	if err != nil {
		return nil, err
	}
	w.api = synthetic.NewAPI(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving, nil })
	public := net.JoinHostPort(lab.PublicAddress(0).String(), strconv.Itoa(lab.PublicPort))
	w.fleet, err = synthetic.New(synthetic.Options{
		Domain: domain, Gateway: "gateway-0", Roots: w.roots, API: w.api, Tunnels: perEdge,
		Dial: func(ctx context.Context) (net.Conn, error) { return l.Network.Workload.DialContext(ctx, "tcp", public) },
	})
	if err != nil {
		return nil, err
	}
	err = l.Management.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return w, err
}

func (w *world) close(ctx context.Context) {
	if w.fleet != nil {
		_ = w.fleet.Close()
	}
	if w.api != nil {
		_ = w.api.Close()
	}
	w.Close(context.WithoutCancel(ctx))
}

// readCA takes the key of the installation's CA, as its administrator can.
func (w *world) readCA(ctx context.Context) (err error) {
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: lab.InstallationNamespace, Name: v1alpha1.CASecretName}
	if err := w.Management.Client.Get(ctx, key, secret); err != nil {
		return fmt.Errorf("reading the installation's CA: %w", err)
	}
	if w.ca, err = certs.ParseCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return err
	}
	w.roots = x509.NewCertPool()
	w.roots.AppendCertsFromPEM(w.ca.CertPEM())
	w.key, err = certs.NewKey()
	return err
}

func (w *world) leaf(leaf certs.Leaf) (*tls.Certificate, error) {
	leaf.NotBefore, leaf.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(12*time.Hour)
	chain, err := w.ca.Issue(w.key.Public(), leaf)
	if err != nil {
		return nil, err
	}
	identity, err := certs.NewIdentity(chain, w.key)
	if err != nil {
		return nil, err
	}
	certificate := identity.TLSCertificate()
	return &certificate, nil
}

// name is that of the i-th Cluster.
func name(i int) string { return fmt.Sprintf("c%05d", i) }

func hostname(i int) (string, error) {
	return domain.Hostname(model.Key{Namespace: namespace, Name: name(i)})
}

// create creates one Cluster, as kubectl apply would.
func (w *world) create(ctx context.Context, i int) error {
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name(i), Labels: map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.1", Port: 6443},
			InfrastructureRef:    clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "LabCluster", Name: name(i)},
		},
	}
	if err := w.Management.Client.Create(ctx, cluster); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the Cluster %s: %w", name(i), err)
	}
	return nil
}

// createAll creates many, and returns the tunnels that the controller has made for them, by name.
func (w *world) createAll(ctx context.Context, n int) (map[string]string, error) {
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(creating)
	for i := range n {
		group.Go(func() error { return w.create(bounded, i) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	ids := map[string]string{}
	err := lab.Wait(ctx, patience+time.Duration(n)*allPatience, func(ctx context.Context) error {
		var all v1alpha1.TunnelList
		if err := w.Management.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			return err
		}
		clear(ids)
		for _, t := range all.Items {
			if t.Spec.ID != "" {
				ids[t.Name] = t.Spec.ID
			}
		}
		if len(ids) < n {
			return fmt.Errorf("%d of %d Clusters have a Tunnel", len(ids), n)
		}
		return nil
	})
	return ids, err
}

// edge adds an edge of a tunnel.
func (w *world) edge(id string) (*synthetic.Edge, error) {
	edge := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: id}
	certificate, err := w.leaf(certs.Leaf{CommonName: edge.Node, DNSNames: domain.DNSNames(edge), Server: true, Client: true})
	if err != nil {
		return nil, err
	}
	return w.fleet.Add(synthetic.Spec{Node: edge.Node, ID: id, Certificate: certificate}), nil
}

// connect does TLS with a workload cluster by the SNI route, from the management network.
func (w *world) connect(ctx context.Context, host string) (*tls.Conn, error) {
	address := net.JoinHostPort(lab.InsideAddress(0).String(), strconv.Itoa(lab.APIServerPort))
	conn, err := w.Network.Management.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{
		ServerName: host, InsecureSkipVerify: true, // verified here: all apiservers have one certificate
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: w.roots, DNSName: "kubernetes"})
			return err
		},
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// get makes one request on a new connection.
func (w *world) get(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeout(ctx, synthetic.Patience)
	defer cancel()
	conn, err := w.connect(ctx, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(ctx, conn, host, "/version")
}

// ask makes one request on a connection, which is over then.
func ask(ctx context.Context, conn net.Conn, host, path string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return err
}

// answers waits until a workload cluster answers, and returns how long that took.
func (w *world) answers(ctx context.Context, host string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := w.get(ctx, host)
		if err == nil {
			return time.Since(begin), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for %s: %w", host, err)
		case <-tick.C:
		}
	}
}
