package issuers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	// readTime bounds one reading. A slow apiserver delays one worker for so long.
	readTime = 10 * time.Second
	// maxHeader and maxIssuer bound what an apiserver may answer, in bytes, in addition to podtoken.MaxKeySet.
	maxHeader, maxIssuer = 32 << 10, 2048
	// discoveryPath and keysPath are fixed. The key set that the discovery document names is not dialled, because the
	// workload cluster could name any address.
	discoveryPath, keysPath = "/.well-known/openid-configuration", "/openid/v1/jwks"
)

// discovered is what an apiserver publishes about its ServiceAccount tokens.
type discovered struct {
	issuer string
	keys   []podtoken.Key
}

// errKubeconfig wraps the errors about a kubeconfig that cannot be used here.
var errKubeconfig = errors.New("the kubeconfig of the Cluster cannot be used to read the keys")

// read reads issuer and keys from the apiserver of a Cluster: by CONNECT to the gateways, and TLS to the apiserver that
// the CA in the Cluster's own kubeconfig verifies. It dials nothing but the proxy of the endpoint, and uses nothing of
// this machine: a kubeconfig that names a file or a program is rejected, because users write it.
func read(ctx context.Context, at kubeconfig.Endpoint, secret *corev1.Secret, cluster string) (discovered, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	client, err := newReader(at, secret, cluster)
	if err != nil {
		return discovered{}, err
	}
	defer client.CloseIdleConnections()
	var document struct {
		Issuer string `json:"issuer"`
	}
	data, err := client.get(ctx, discoveryPath)
	if err != nil {
		return discovered{}, err
	}
	if json.Unmarshal(data, &document) != nil || document.Issuer == "" || len(document.Issuer) > maxIssuer ||
		strings.ContainsFunc(document.Issuer, func(r rune) bool { return r < ' ' || r > '~' }) {
		return discovered{}, fmt.Errorf("reading issuer: %s names no valid issuer", discoveryPath)
	}
	if data, err = client.get(ctx, keysPath); err != nil {
		return discovered{}, err
	}
	keys, err := podtoken.ParseKeys(data)
	if err != nil {
		return discovered{}, fmt.Errorf("reading keys: %w", err)
	}
	return discovered{issuer: document.Issuer, keys: keys}, nil
}

// reader is the client of one apiserver.
type reader struct {
	http.Client
	server, bearer string
}

func newReader(endpoint kubeconfig.Endpoint, secret *corev1.Secret, cluster string) (*reader, error) {
	config, entry, err := kubeconfig.Load(secret, cluster)
	if err != nil {
		return nil, err
	}
	user := &clientcmdapi.AuthInfo{}
	if current := config.Contexts[config.CurrentContext]; current != nil && config.AuthInfos[current.AuthInfo] != nil {
		user = config.AuthInfos[current.AuthInfo]
	}
	tlsConfig, err := tlsOf(endpoint, entry, user)
	if err != nil {
		return nil, err
	}
	proxy, err := url.Parse(endpoint.ProxyURL)
	if err != nil || proxy.Host == "" {
		return nil, fmt.Errorf("%w: the gateways have no connect address", errKubeconfig)
	}
	return &reader{server: endpoint.Server, bearer: user.Token, Client: http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyURL(proxy), TLSClientConfig: tlsConfig, MaxResponseHeaderBytes: maxHeader,
			DisableCompression: true, // the limit is of what is sent
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the apiserver redirects") },
	}}, nil
}

// tlsOf returns the TLS configuration of a kubeconfig, from the data in it alone.
func tlsOf(
	endpoint kubeconfig.Endpoint, entry *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo,
) (*tls.Config, error) {
	switch {
	case entry.InsecureSkipTLSVerify || entry.CertificateAuthority != "" || len(entry.CertificateAuthorityData) == 0:
		return nil, fmt.Errorf("%w: it must contain the CA of the apiserver as data", errKubeconfig)
	case user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "" || user.Exec != nil ||
		user.AuthProvider != nil || user.Impersonate != "" || user.Username != "":
		return nil, fmt.Errorf(
			"%w: its user must have a client certificate or a token as data, and name no file and no program", errKubeconfig,
		)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(entry.CertificateAuthorityData) {
		return nil, fmt.Errorf("%w: its CA is not PEM", errKubeconfig)
	}
	name := endpoint.TLSServerName
	if name == "" {
		name = kubeconfig.Host(endpoint.Server)
	}
	config := &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}
	if len(user.ClientCertificateData) > 0 {
		pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
		if err != nil { // the error may quote the Secret
			return nil, fmt.Errorf("%w: the client certificate of its user does not match its key", errKubeconfig)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// get returns the body of a path. Errors contain nothing of it.
func (r *reader) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.server+path, nil)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if r.bearer != "" {
		request.Header.Set("Authorization", "Bearer "+r.bearer)
	}
	response, err := r.Do(request)
	if err != nil {
		return nil, fmt.Errorf("reading %s through the tunnel: %w", path, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf(
			"reading %s: the apiserver answers %d: the user of the kubeconfig needs permission to get this path", path,
			response.StatusCode,
		)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, podtoken.MaxKeySet+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s through the tunnel: %w", path, err)
	case len(data) > podtoken.MaxKeySet:
		return nil, fmt.Errorf("reading %s: the answer is longer than %d bytes", path, podtoken.MaxKeySet)
	}
	return data, nil
}
