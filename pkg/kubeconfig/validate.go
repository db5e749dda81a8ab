package kubeconfig

import (
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxCredential is the limit of SOCKS5 (RFC 1929, section 2). It is enough for HTTP.
const maxCredential = 255

// Credentials are the credentials of a proxy. They must only be written to a proxy-url in a Secret.
type Credentials struct{ Username, Password string }

// String hides the credentials.
func (Credentials) String() string { return "(hidden)" }

// GoString hides the credentials.
func (Credentials) GoString() string { return "(hidden)" }

// ReadCredentials reads the Secret that spec.kubeconfig.proxy.credentialsSecret names. secret is nil if it does not
// exist. The error never contains any content of the Secret.
func ReadCredentials(name string, secret *corev1.Secret) (*Credentials, *model.FieldError) {
	bad := func(problem, cure string) *model.FieldError {
		return &model.FieldError{Field: "spec.kubeconfig.proxy.credentialsSecret", Value: name, Problem: problem, Cure: cure}
	}
	if secret == nil {
		return nil, bad(
			"Secret not found",
			"create a Secret of type kubernetes.io/basic-auth with the keys username and password in the namespace of the "+
				"Tunnel",
		)
	}
	if secret.Type != corev1.SecretTypeBasicAuth {
		return nil, bad(
			"its type is not kubernetes.io/basic-auth", "create it again with this type and the keys username and password",
		)
	}
	c := Credentials{string(secret.Data[corev1.BasicAuthUsernameKey]), string(secret.Data[corev1.BasicAuthPasswordKey])}
	switch {
	case c.Username == "" || c.Password == "":
		return nil, bad("it has no username or no password", "give it the keys username and password")
	case len(c.Username) > maxCredential || len(c.Password) > maxCredential:
		return nil, bad(fmt.Sprintf("its username or password has more than %d bytes", maxCredential), "give shorter ones")
	case strings.Contains(c.Username, ":"):
		return nil, bad("its username contains a colon, which basic authentication does not allow", "give another username")
	case strings.ContainsFunc(c.Username+c.Password, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, bad(
			"its username or password contains a control character, such as a newline", "remove the control character",
		)
	}
	return &c, nil
}

// Validate checks the fields of an untunnelled mode against what client-go supports. The reason is for a condition,
// and is meaningful only if problem is not nil.
func Validate(spec v1alpha1.KubeconfigSpec) (reason string, problem *model.FieldError) {
	if e := validateServerName(spec.TLSServerName); e != nil {
		return v1alpha1.ReasonInvalidServer, e
	}
	switch spec.Mode {
	case v1alpha1.KubeconfigModeAddress:
		return v1alpha1.ReasonInvalidServer, validateServer(spec.Server)
	case v1alpha1.KubeconfigModeHTTPProxy, v1alpha1.KubeconfigModeHTTPSProxy, v1alpha1.KubeconfigModeSOCKS5:
		return v1alpha1.ReasonInvalidProxy, validateProxy(spec.Proxy)
	}
	return "", nil
}

func validateServer(server string) *model.FieldError {
	bad := func(problem string) *model.FieldError {
		return &model.FieldError{
			Field:   "spec.kubeconfig.server",
			Value:   server,
			Problem: problem,
			Cure:    "give https://host:port",
		}
	}
	u, err := url.Parse(server)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "":
		return bad("it is not an https URL")
	case u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "":
		e := bad("it is more than a host and a port")
		e.Value = "" // the rest may contain a password
		return e
	}
	address := u.Host
	if u.Port() == "" {
		address = strings.TrimSuffix(u.Host, ":") + ":443"
	}
	if _, err := model.ParseEndpoint(strings.ToLower(address)); err != nil {
		return bad(err.Error())
	}
	return nil
}

// validateServerName accepts what crypto/tls accepts as the name to verify: a DNS name, also of one label, or an IP
// address.
func validateServerName(name string) *model.FieldError {
	if name == "" {
		return nil
	}
	if err := (model.Endpoint{Host: strings.ToLower(name), Port: 1}).Validate(); err != nil {
		return &model.FieldError{
			Field: "spec.kubeconfig.tlsServerName", Value: name, Problem: "it must be a DNS name or an IP address",
			Cure: "give a name that is in the serving certificate, or remove it",
		}
	}
	return nil
}

func validateProxy(proxy *v1alpha1.ProxySpec) *model.FieldError {
	e := &model.FieldError{Field: "spec.kubeconfig.proxy.address", Cure: "give host:port; the mode sets the kind of proxy"}
	if proxy == nil {
		e.Problem = "there is none"
		return e
	}
	if strings.Contains(proxy.Address, "@") {
		e.Problem, e.Cure = "it contains credentials", "give host:port, and the credentials in a Secret that "+
			"spec.kubeconfig.proxy.credentialsSecret names"
		return e
	}
	e.Value = proxy.Address
	if strings.Contains(proxy.Address, "/") {
		e.Problem = "it is a URL"
		return e
	}
	if _, err := model.ParseEndpoint(strings.ToLower(proxy.Address)); err != nil {
		e.Problem = err.Error()
		return e
	}
	return nil
}

// proxyURL returns the proxy-url of a mode with a proxy, without credentials, or "" for any other mode.
func proxyURL(spec v1alpha1.KubeconfigSpec) string {
	scheme := map[v1alpha1.KubeconfigMode]string{
		v1alpha1.KubeconfigModeHTTPProxy: "http", v1alpha1.KubeconfigModeHTTPSProxy: "https",
		v1alpha1.KubeconfigModeSOCKS5: "socks5",
	}[spec.Mode]
	if scheme == "" || spec.Proxy == nil {
		return ""
	}
	return scheme + "://" + spec.Proxy.Address
}
