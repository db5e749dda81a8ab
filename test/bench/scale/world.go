package scale

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/bench/fleet"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/synthetic"
)

const (
	domain    = fleet.Domain
	namespace = "fleet"
	// creating is how many Clusters are created at the same time.
	creating = 32
	// patience bounds every wait that does not depend on the size.
	patience = time.Minute
	// allPatience bounds the others, for each workload cluster.
	allPatience = 120 * time.Millisecond
	// sizePatience, and clusterPatience for each workload cluster, bound one size: 35 minutes for 10,000.
	sizePatience, clusterPatience = 5 * time.Minute, 180 * time.Millisecond
)

// world is an installation with synthetic edges.
type world struct{ *fleet.World }

func newWorld(ctx context.Context, options fleet.Options) (*world, error) {
	base, err := fleet.New(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := base.CreateNamespace(ctx, namespace); err != nil {
		base.Close(ctx)
		return nil, err
	}
	return &world{base}, nil
}

// name returns the name of the i-th Cluster.
func name(i int) string { return fmt.Sprintf("c%05d", i) }

func hostname(i int) (string, error) {
	return domain.Hostname(model.Key{Namespace: namespace, Name: name(i)})
}

// create creates one Cluster, as kubectl apply would.
func (w *world) create(ctx context.Context, i int) error {
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      name(i),
			Labels:    map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
		},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "192.0.2.1", Port: 6443},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "infrastructure.cluster.x-k8s.io",
				Kind:     "LabCluster",
				Name:     name(i),
			},
		},
	}
	return w.Create(ctx, cluster)
}

// createAll creates n Clusters, and returns the ids of the tunnels that the controller has made for them, by name.
func (w *world) createAll(ctx context.Context, n int) (map[string]string, error) {
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(creating)
	for i := range n {
		group.Go(func() error { return w.create(bounded, i) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return w.Tunnels(ctx, namespace, n, patience+time.Duration(n)*allPatience)
}

// connect opens a TLS connection to a workload cluster by the SNI route of the first gateway.
func (w *world) connect(ctx context.Context, host string) (*tls.Conn, error) {
	return w.connectBy(ctx, 0, host)
}

// connectBy opens a TLS connection to a workload cluster by the SNI route of a gateway, from the management network.
func (w *world) connectBy(ctx context.Context, gateway int, host string) (*tls.Conn, error) {
	address := netns.HostPort(netns.InsideAddress(gateway).String(), netns.APIServerPort)
	conn, err := w.Network.Management.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{
		ServerName: host, InsecureSkipVerify: true, // verified below: all apiservers have the same certificate
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: w.Roots, DNSName: "kubernetes"})
			return err
		},
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// get sends one request on a new connection by the first gateway.
func (w *world) get(ctx context.Context, host string) error { return w.getBy(ctx, 0, host) }

// getBy sends one request on a new connection by a gateway.
func (w *world) getBy(ctx context.Context, gateway int, host string) error {
	ctx, cancel := context.WithTimeout(ctx, synthetic.Patience)
	defer cancel()
	conn, err := w.connectBy(ctx, gateway, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(ctx, conn, host, "/version")
}

// ask sends one request on a connection and closes it.
func ask(ctx context.Context, conn net.Conn, host, path string) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialTLSContext:    func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
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

// answers waits until a workload cluster answers by the first gateway, and returns how long that took.
func (w *world) answers(ctx context.Context, host string) (time.Duration, error) {
	return w.answersBy(ctx, 0, host)
}

// answersBy waits until a workload cluster answers by a gateway, and returns how long that took.
func (w *world) answersBy(ctx context.Context, gateway int, host string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	begin := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := w.getBy(ctx, gateway, host)
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
