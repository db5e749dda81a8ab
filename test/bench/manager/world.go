package manager

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/test/bench/fleet"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
)

const (
	// tunnels is how many tunnels each edge has, the default.
	tunnels = 2
	// creating is how many Clusters are created at the same time.
	creating = 16
)

// directAddress is the address of the apiserver of all workload clusters without a tunnel.
var directAddress = netip.MustParseAddrPort("10.111.2.10:9443")

// world is an installation with Clusters in two namespaces, which are named like the subjects.
type world struct {
	*fleet.World
	size      int
	authority *pki.Authority // of the workload clusters
}

func newWorld(ctx context.Context, size int) (*world, error) {
	authority, err := pki.NewAuthority("kubernetes")
	if err != nil {
		return nil, err
	}
	pair, err := authority.Issue(pki.LeafSpec{
		CommonName: "kube-apiserver", Usage: x509.ExtKeyUsageServerAuth,
		Names: []string{directAddress.Addr().String(), "*.fairlead." + string(fleet.Domain)},
	})
	if err != nil {
		return nil, err
	}
	serving, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the apiserver's certificate: %w", err)
	}
	base, err := fleet.New(ctx, fleet.Options{Tunnels: tunnels, Serving: &serving})
	if err != nil {
		return nil, err
	}
	return &world{base, size, authority}, nil
}

// prepare creates all Clusters and edges. Clusters with tunnels get their kubeconfigs from Fairlead.
func (w *world) prepare(ctx context.Context) error {
	if err := w.Network.ConnectDirectly(ctx); err != nil {
		return err
	}
	listener, err := w.Network.Workload.Listen(ctx, directAddress.String())
	if err != nil {
		return fmt.Errorf("listening for direct connections: %w", err)
	}
	w.API.Serve(listener)
	for _, subject := range subjects {
		if err := w.createAll(ctx, subject); err != nil {
			return err
		}
	}
	timeout := patience + time.Duration(w.size)*patienceEach
	ids, err := w.Tunnels(ctx, "fairlead", w.size, timeout)
	if err != nil {
		return err
	}
	for _, id := range ids {
		e, err := w.Edge(id)
		if err != nil {
			return err
		}
		e.Start()
	}
	up, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := w.Fleet.WaitUp(up, int64(tunnels*w.size)); err != nil {
		return fmt.Errorf("waiting for edges: %w", err)
	}
	return w.waitKubeconfigs(up)
}

// createAll creates the Clusters of one subject, so that a manager can connect to them.
func (w *world) createAll(ctx context.Context, subject string) error {
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(creating)
	for i := range w.size {
		group.Go(func() error {
			// Separate credentials keep client-go from sharing connections between workload clusters.
			admin, err := w.authority.Issue(
				pki.LeafSpec{
					CommonName:    "kubernetes-admin",
					Organizations: []string{"system:masters"},
					Usage:         x509.ExtKeyUsageClientAuth,
				},
			)
			if err != nil {
				return err
			}
			spec := lab.ClusterSpec{
				Name: fmt.Sprintf("c%05d", i), Namespace: subject, Labels: map[string]string{},
				APIServer: &kube.APIServer{Name: subject, CA: w.authority, Admin: admin, Endpoint: directAddress},
			}
			if subject == "fairlead" {
				spec.Labels, spec.Mode = nil, v1alpha1.KubeconfigModeSNI
			}
			c, err := w.CreateCluster(bounded, spec)
			if err != nil {
				return err
			}
			return c.SetProvisioned(bounded)
		})
	}
	return group.Wait()
}

// waitKubeconfigs waits until the kubeconfigs of all Clusters with tunnels lead to the gateway.
func (w *world) waitKubeconfigs(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var all corev1.SecretList
		err := w.Management.Client.List(
			ctx, &all, client.InNamespace("fairlead"), client.HasLabels{"cluster.x-k8s.io/cluster-name"},
		)
		there := 0
		for _, secret := range all.Items {
			if bytes.Contains(secret.Data[kubeconfig.Key], []byte(netns.GatewayName)) {
				there++
			}
		}
		if err == nil && there >= w.size {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf(
				"waiting for kubeconfigs: %d of %d lead to the gateway: %w", there, w.size, errors.Join(ctx.Err(), err),
			)
		case <-tick.C:
		}
	}
}
