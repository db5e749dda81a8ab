package test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/kubeconfig"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
)

// anyPort replaces the port of the local proxy where no proxy is used.
const anyPort = kubeconfig.DefaultProxyPort

// ways knows the ways to one workload cluster.
type ways struct {
	config *clientcmdapi.Config // with one context
	name   string               // of the context
	tunnel *v1alpha1.Tunnel
	via    string
}

// readWays reads the kubeconfig of a Cluster.
func readWays(ctx context.Context, m *management.Client, key client.ObjectKey, via string) (*ways, error) {
	w := &ways{name: key.Name + "." + key.Namespace, via: via}
	var err error
	w.config, w.tunnel, err = kubeconfig.Read(ctx, m, kubeconfig.Options{Cluster: key, Name: w.name})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// cluster returns the entry of the kubeconfig that has the address.
func (w *ways) cluster() *clientcmdapi.Cluster { return w.config.Clusters[w.name] }

// target returns the apiserver of the kubeconfig after a change, by a Dial.
func (w *ways) target(change func(*clientcmdapi.Cluster) error, dial traffic.Dial) (*traffic.Target, error) {
	config := w.config.DeepCopy()
	if change != nil {
		if err := change(config.Clusters[w.name]); err != nil {
			return nil, err
		}
	}
	settings, err := clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", w.name, err)
	}
	return traffic.New(settings, dial)
}

// own is the way of the kubeconfig itself.
func (w *ways) own() (*traffic.Target, error) { return w.target(nil, traffic.Machine(w.via)) }

// streams is the way of the kubeconfig itself for clients that ignore a Dial, such as those of client-go for streams:
// the address in the kubeconfig is replaced, and the name that clients verify stays.
func (w *ways) streams() (*traffic.Target, error) {
	return w.target(func(c *clientcmdapi.Cluster) error {
		if w.via == "" {
			return nil
		}
		dialled := &c.Server
		if c.ProxyURL != "" {
			dialled = &c.ProxyURL
		} else {
			c.TLSServerName = verifiedName(c)
		}
		u, err := url.Parse(*dialled)
		if err != nil {
			return err
		}
		u.Host = w.via
		*dialled = u.String()
		return nil
	}, traffic.Machine(""))
}

// bySNI is the way of mode sni through the gateways at an address.
func (w *ways) bySNI(address string) (*traffic.Target, error) {
	return w.target(func(c *clientcmdapi.Cluster) error {
		if err := kubeconfig.LeadThroughProxy(c, w.tunnel, anyPort); err != nil {
			return err
		}
		server, err := url.Parse(c.Server)
		if err != nil {
			return err
		}
		c.ProxyURL, c.TLSServerName = "", server.Hostname()
		return nil
	}, traffic.Machine(address))
}

// byConnect is the way of mode connect through the gateways at an address.
func (w *ways) byConnect(address string) (*traffic.Target, error) {
	return w.target(func(c *clientcmdapi.Cluster) error {
		verified := verifiedName(c)
		if err := kubeconfig.LeadThroughProxy(c, w.tunnel, anyPort); err != nil {
			return err
		}
		c.ProxyURL, c.TLSServerName = "http://"+address, verified
		return nil
	}, traffic.Machine(""))
}

// through is the way of mode connect through one gateway.
func (w *ways) through(connect func(ctx context.Context, authority string) (net.Conn, error)) (*traffic.Target, error) {
	return w.target(func(c *clientcmdapi.Cluster) error {
		verified := verifiedName(c)
		if err := kubeconfig.LeadThroughProxy(c, w.tunnel, anyPort); err != nil {
			return err
		}
		c.ProxyURL, c.TLSServerName = "", verified
		return nil
	}, func(ctx context.Context, _, authority string) (net.Conn, error) { return connect(ctx, authority) })
}

// verifiedName is the name that clients of a kubeconfig verify, which does not change with the way.
func verifiedName(c *clientcmdapi.Cluster) string {
	if c.TLSServerName != "" {
		return c.TLSServerName
	}
	server, err := url.Parse(c.Server)
	if err != nil {
		return ""
	}
	return server.Hostname()
}

// addresses returns each address that clients of the kubeconfig may dial.
func (w *ways) addresses(ctx context.Context) ([]string, error) {
	host, port, err := net.SplitHostPort(kubeconfig.Address(w.cluster()))
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{net.JoinHostPort(host, port)}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, address := range found {
		all = append(all, net.JoinHostPort(address.Unmap().String(), port))
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
