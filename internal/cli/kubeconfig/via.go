package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// DefaultProxyPort is the port on which `fairlead proxy` listens by default. It is not that of a well-known proxy.
const DefaultProxyPort = 13128

// The values of --via.
const (
	viaAuto    = "auto"
	viaAddress = "address"
	viaProxy   = "proxy"
)

var vias = []string{viaAuto, viaAddress, viaProxy}

// probeTime bounds the test of one way to the apiserver. A gateway holds a request without a tunnel for 1.4 s.
const probeTime = 5 * time.Second

// choose lets a kubeconfig lead through the local proxy, if --via requires it or the kubeconfig's own address does not
// lead to the apiserver from this machine. It prints one line about a choice of its own, and about what to run.
func (f *kubeconfigFlags) choose(cmd *cobra.Command, config *clientcmdapi.Config, tunnel *v1alpha1.Tunnel) error {
	cluster := config.Clusters[f.name]
	if f.via == viaAddress {
		return nil
	}
	reason := "as --via requires"
	if f.via == viaAuto {
		if !tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
			return nil // the gateways, and so the proxy, do not lead there
		}
		err := probe(cmd.Context(), cluster)
		if err == nil {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "chose the address: the apiserver answers at %s\n", Address(cluster))
			return err
		}
		reason = fmt.Sprintf("because the apiserver does not answer at %s from here (%s)", Address(cluster), text(err))
	}
	if err := LeadThroughProxy(cluster, tunnel, f.proxyPort); err != nil {
		return err
	}
	todo := "run: " + f.proxyCommand() + " &"
	if probe(cmd.Context(), cluster) == nil {
		todo = "it answers"
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "chose the local proxy, %s; %s\n", reason, todo)
	return err
}

// proxyCommand returns the command line of the proxy for the same management cluster. It names the context even if this
// command line did not, because --use changes the current one.
func (f *kubeconfigFlags) proxyCommand() string {
	words := []string{"fairlead", "proxy"}
	if f.Kubeconfig != "" {
		words = append(words, "--kubeconfig="+f.Kubeconfig)
	}
	name := f.Context
	if raw, err := f.Loader().RawConfig(); err == nil && name == "" {
		name = raw.CurrentContext
	}
	if name != "" {
		words = append(words, "--context="+name)
	}
	if f.proxyPort != DefaultProxyPort {
		words = append(words, "--port="+strconv.Itoa(int(f.proxyPort)))
	}
	return strings.Join(words, " ")
}

// LeadThroughProxy lets a cluster entry of a kubeconfig lead through `fairlead proxy` on a port of this machine. One
// port serves every tunnel in the modes sni and connect, because the gateways route a CONNECT by each name of a tunnel.
// The name that clients verify stays. It returns an error, and changes nothing, if the entry leads to no such name.
func LeadThroughProxy(c *clientcmdapi.Cluster, tunnel *v1alpha1.Tunnel, port uint16) error {
	if !tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		return fmt.Errorf(
			"the mode %s uses a network of your own, which the gateways and the local proxy do not reach: use --via=address",
			tunnel.Spec.Kubeconfig.Mode,
		)
	}
	server, err := url.Parse(c.Server)
	if err != nil {
		return errors.New("its server is not a URL")
	}
	// In mode sni the server may be the address of the gateways; clients then send the name as SNI.
	names := []string{kubeconfig.Host(c.Server), c.TLSServerName}
	at := slices.IndexFunc(names, func(name string) bool { return slices.Contains(tunnel.Status.Names, name) })
	if at < 0 {
		return fmt.Errorf("its server %s is not a name of the tunnel: see the condition KubeconfigReady", c.Server)
	}
	server.Host = net.JoinHostPort(names[at], portOf(server))
	c.Server, c.ProxyURL = server.String(), ProxyURL(port)
	return nil
}

// ProxyURL returns the URL of `fairlead proxy` on a port of this machine.
func ProxyURL(port uint16) string {
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
}

// Address returns what a client of a kubeconfig dials, without credentials.
func Address(c *clientcmdapi.Cluster) string {
	dialled := c.Server
	if c.ProxyURL != "" {
		dialled = c.ProxyURL
	}
	u, err := url.Parse(dialled)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), portOf(u))
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "http":
		return "80"
	}
	return "443"
}

// probe returns nil if the apiserver answers a request on the way that a kubeconfig describes. It takes the way of
// client-go, with its CONNECT, its SNI and its verification of the serving certificate, so another server at the same
// address is an error. It sends no credentials of the user: an apiserver that denies the request has answered.
func probe(ctx context.Context, c *clientcmdapi.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	config := &rest.Config{
		Host:            c.Server,
		TLSClientConfig: rest.TLSClientConfig{ServerName: c.TLSServerName, CAData: c.CertificateAuthorityData},
	}
	if c.ProxyURL != "" {
		proxy, err := url.Parse(c.ProxyURL)
		if err != nil {
			return errors.New("its proxy-url is invalid")
		}
		config.Proxy = http.ProxyURL(proxy)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("creating client of the workload cluster: %w", err)
	}
	defer client.CloseIdleConnections()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.Server, "/")+"/version", nil)
	if err != nil {
		return errors.New("its server is not a URL")
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// text returns an error of a request without its URL, on one line.
func text(err error) string {
	if wrapped := (&url.Error{}); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
