package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/http/httpproxy"

	"github.com/fairlead/fairlead/pkg/model"
)

// maxCredentials is far above the size of a user name and a password.
const maxCredentials = 4 << 10

// Proxy is an HTTP proxy that supports CONNECT. The zero value is no proxy. Printing a Proxy never shows a password.
type Proxy struct {
	address     model.Endpoint
	secure      bool                                      // TLS to the proxy
	roots       *x509.CertPool                            // CAs of a proxy with TLS; nil: the machine's
	find        func(*url.URL) (*url.URL, error)          // returns nil for an exception; nil: no proxy
	credentials func() (user, password string, err error) // nil: none
}

// ParseProxy parses the URL of a proxy: http://host:port or https://host:port, with an optional user:password@ before
// the host. An empty URL is no proxy. noProxy lists exceptions as NO_PROXY does: names, domains, addresses and
// networks, separated by commas. Loopback addresses are always exceptions. credentials is called at each use and takes
// precedence over the URL; if it is nil, only the URL's credentials are used. No error contains any part of a
// password.
func ParseProxy(proxyURL, noProxy string, credentials func() (user, password string, err error)) (Proxy, error) {
	if proxyURL == "" {
		return Proxy{}, nil
	}
	u, err := url.Parse(proxyURL)
	if err != nil || u.Host == "" {
		u, err = url.Parse("http://" + proxyURL) // host:port alone is common in the environment
	}
	if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		// Without the cause, which would quote the password.
		return Proxy{}, errors.New(
			"reading URL of the proxy: it is not like http://host:port or http://user:password@host:port",
		)
	}
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return Proxy{}, fmt.Errorf("reading URL of the proxy: scheme %q is invalid: must be http or https", u.Scheme)
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	address, err := model.ParseEndpoint(net.JoinHostPort(strings.ToLower(u.Hostname()), port))
	if err != nil {
		return Proxy{}, fmt.Errorf("reading URL of the proxy: %w", err)
	}
	if u.User != nil && credentials == nil {
		user := u.User.Username()
		password, _ := u.User.Password()
		credentials = func() (string, string, error) { return user, password, nil }
	}
	u.User = nil
	config := httpproxy.Config{HTTPSProxy: u.String(), NoProxy: noProxy}
	return Proxy{address: address, secure: u.Scheme == "https", find: config.ProxyFunc(), credentials: credentials}, nil
}

// ProxyFromEnvironment is ParseProxy with HTTPS_PROXY and NO_PROXY from the environment. Their lower-case forms take
// precedence. For credentials, see ParseProxy.
func ProxyFromEnvironment(credentials func() (user, password string, err error)) (Proxy, error) {
	environment := httpproxy.FromEnvironment()
	return ParseProxy(environment.HTTPSProxy, environment.NoProxy, credentials)
}

// CredentialsFile returns credentials that are read from a file at each use. The file contains one line,
// user:password.
func CredentialsFile(path string) func() (user, password string, err error) {
	return func() (string, string, error) {
		file, err := os.Open(path)
		if err != nil {
			return "", "", fmt.Errorf("reading credentials of the proxy: %w", err)
		}
		defer file.Close()
		data, err := io.ReadAll(io.LimitReader(file, maxCredentials+1))
		if err != nil {
			return "", "", fmt.Errorf("reading credentials of the proxy: %w", err)
		}
		line := strings.TrimRight(string(data), "\r\n")
		user, password, ok := strings.Cut(line, ":")
		if !ok || len(data) > maxCredentials || strings.ContainsFunc(line, unicode.IsControl) {
			return "", "", fmt.Errorf("reading credentials of the proxy: %s is not one line user:password", path)
		}
		return user, password, nil
	}
}

// String returns the proxy's URL without credentials, or "" for no proxy.
func (p Proxy) String() string {
	switch {
	case p.find == nil:
		return ""
	case p.secure:
		return "https://" + p.address.String()
	}
	return "http://" + p.address.String()
}

// leadsTo reports whether an address must be dialled through the proxy.
func (p Proxy) leadsTo(e model.Endpoint) bool {
	if p.find == nil {
		return false
	}
	by, err := p.find(&url.URL{Scheme: "https", Host: e.String()})
	return err == nil && by != nil
}

// authorization returns user and password in the form of RFC 7617, or "" without credentials.
func (p Proxy) authorization() (string, error) {
	if p.credentials == nil {
		return "", nil
	}
	user, password, err := p.credentials()
	switch {
	case err != nil:
		return "", err
	case strings.Contains(user, ":"):
		return "", errors.New("the user name for the proxy has a colon, which basic authentication does not allow")
	}
	return basic(user, password), nil
}

// wrap starts TLS with the proxy if its URL is https. The TLS connection to the final server is inside of it.
func (p Proxy) wrap(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if !p.secure {
		return conn, nil
	}
	secure := tls.Client(
		conn,
		&tls.Config{
			MinVersion: tls.VersionTLS12,
			ServerName: p.address.Host,
			RootCAs:    p.roots,
			NextProtos: []string{"http/1.1"},
		},
	)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("starting TLS with the proxy itself, as https:// in its URL requires: %w", err)
	}
	return secure, nil
}

// printable makes text from unknown sources safe for a log line: bounded, quoted, without control characters.
func printable(text string) string {
	if len(text) > maxQuote {
		text = text[:maxQuote] + "…"
	}
	return strconv.QuoteToGraphic(strings.ToValidUTF8(text, "?"))
}
