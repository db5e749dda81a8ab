package check

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/pkg/diagnose/credentials"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
)

const (
	// requestTime is the timeout of a request in Cluster API's probe.
	requestTime = 5 * time.Second
	// maxAnswer bounds how much of an answer is read.
	maxAnswer = 64 << 10
	userAgent = "fairlead-check"
	// moreTime is the cure for a check whose time has ended.
	moreTime = "give the check more time with --timeout"
)

// client returns an HTTP client with the settings of the kubeconfig and with connections of its own.
func (v *visit) client() (*http.Client, string, error) {
	config := rest.CopyConfig(v.config)
	config.UserAgent, config.Timeout = userAgent, 0
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if v.Via != "" && address == v.dials {
			address = v.Via
		}
		return v.network.DialContext(ctx, network, address)
	}
	httpClient, err := rest.HTTPClientFor(config)
	return httpClient, strings.TrimSuffix(config.Host, "/"), err
}

// answer is an answer of an apiserver.
type answer struct {
	code int
	body []byte
}

func ask(ctx context.Context, client *http.Client, method, url, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return answer{response.StatusCode, data}, err
}

// checkAuthentication uses the kubeconfig to query the apiserver for its user, and then sends the request of Cluster
// API's own probe.
func checkAuthentication(ctx context.Context, v *visit) finding {
	if f := v.cannotAsk(); f != nil {
		return *f
	}
	client, server, err := v.client()
	if err != nil {
		return broken(
			"the kubeconfig cannot be used: "+text(err), "its certificate, key or CA cannot be parsed", v.rewrite(v.secret.Name),
		)
	}
	defer client.CloseIdleConnections()
	const path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	who, err := ask(
		ctx, client, http.MethodPost, server+path,
		`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`,
	)
	if err != nil {
		return v.unanswering(err)
	}
	if who.code == http.StatusUnauthorized {
		return v.unauthorized()
	}
	user := "an unknown name"
	var review authenticationv1.SelfSubjectReview
	if who.code < 300 && json.Unmarshal(who.body, &review) == nil && review.Status.UserInfo.Username != "" {
		user = review.Status.UserInfo.Username
	}
	probe, err := ask(ctx, client, http.MethodGet, server+"/", "")
	switch {
	case err != nil:
		return v.unanswering(err)
	case probe.code == http.StatusForbidden:
		return broken(
			"the apiserver authenticates the user as "+user+", but answers GET / with 403",
			"the user of the kubeconfig has no permissions in the workload cluster: a ClusterRoleBinding is missing",
			"bind the user there again, for kubeadm: kubectl create clusterrolebinding kubeadm:cluster-admins "+
				"--clusterrole=cluster-admin --group=kubeadm:cluster-admins, or the group that the client certificate has",
		)
	case probe.code >= http.StatusInternalServerError:
		return broken(
			fmt.Sprintf("the apiserver answers GET / with %d", probe.code), "the apiserver is not healthy",
			"see its log on the control-plane machine",
		)
	case probe.code != http.StatusOK:
		return broken(
			fmt.Sprintf("the answer to GET / is %d", probe.code), "the server is not an apiserver",
			"check that spec.apiServer of the Tunnel is the apiserver's address",
		)
	}
	return ok("the apiserver authenticates the user as %s, and answers", user)
}

// cannotAsk returns why the kubeconfig cannot be tried; nil: it can.
func (v *visit) cannotAsk() *finding {
	var f finding
	switch {
	case v.cluster == nil:
		f = skipped("the Cluster was not read")
	case v.secret == nil && v.Secrets == nil, v.secret == nil && !v.broken[HopKubeconfig]:
		f = unknown(
			"the kubeconfig cannot be read from here",
			"run fairlead check as a user that may read Secrets in namespace "+v.key.Namespace,
		)
	case v.secret == nil:
		f = skipped("no kubeconfig to test")
	case v.config == nil:
		f = unknown(
			"the kubeconfig's user logs in with a plugin or with files, which check does not use",
			"use kubectl with that kubeconfig on a machine that has the plugin",
		)
	case len(v.addresses) == 0 && !v.broken[HopName]:
		f = unknown("the gateways' name does not resolve from here", v.elsewhere())
	case v.unreached:
		f = skipped("no edge reaches an apiserver")
	case v.open == 0:
		f = skipped("no gateway accepts connections from here")
	default:
		return nil
	}
	return &f
}

// unauthorized returns the finding for status 401.
func (v *visit) unauthorized() finding {
	f := broken(
		"the apiserver rejects the credentials of the kubeconfig (401)",
		"its client certificate is of another CA, or its certificate or token has expired", v.rewrite(v.secret.Name),
	)
	if leaf := credentials.Leaf(v.config.CertData); leaf != nil && v.now().After(leaf.NotAfter) {
		f.cause = "its client certificate expired at " + utc(leaf.NotAfter)
	}
	return f
}

// unanswering returns the finding for a request without an answer.
func (v *visit) unanswering(err error) finding {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	detail := "a request with the kubeconfig has no answer: " + text(err)
	switch {
	case errors.As(err, &authority):
		return broken(
			detail,
			"the CA in the kubeconfig did not sign the apiserver's certificate: one of the two was replaced, or the tunnel "+
				"ends at another workload cluster",
			v.rewrite(v.secret.Name),
		)
	case errors.As(err, &name):
		return broken(
			detail, "the apiserver's serving certificate lacks the name that the kubeconfig verifies", v.otherMode(),
		)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return broken(
			detail, "the apiserver's serving certificate is not valid now: it has expired, or a clock is wrong",
			"renew it on the control-plane machine (kubeadm certs renew apiserver), or correct the clock",
		)
	case explain.IsTimeout(err):
		return broken(
			"a request with the kubeconfig has no answer within "+requestTime.String(),
			"the connection opens but the apiserver does not answer: it hangs, or a device on the path drops packets",
			"check the apiserver on the control-plane machine, and the previous hop",
		)
	// Answers of gateway-agents for a workload cluster without tunnels: by CONNECT, and by SNI.
	case strings.Contains(err.Error(), "Service Unavailable"), strings.Contains(err.Error(), "tls: unrecognized name"):
		return broken(
			detail, "the gateway has no tunnel to the workload cluster: it is unreachable", "see the hops tunnels and edge",
		)
	case explain.IsCut(err):
		return broken(
			detail,
			"the gateway closes the connection: it does not serve the name, or has no tunnel to the workload cluster, or the "+
				"edge does not reach the apiserver",
			"see the hops route, tunnels and apiserver",
		)
	case explain.IsAlert(err):
		return broken(detail, "the apiserver rejects the client certificate in the TLS handshake", v.rewrite(v.secret.Name))
	}
	return broken(detail, "the path to the apiserver is broken", "see the previous hops")
}

// otherMode is the cure for a name that a certificate lacks.
func (v *visit) otherMode() string {
	return fmt.Sprintf(
		"use a mode that accepts every certificate: kubectl -n %s patch tunnel %s --type=merge -p "+
			"'{\"spec\":{\"kubeconfig\":{\"mode\":\"connect\"}}}' (mode auto chooses connect here), or add the name to the "+
			"apiserver's certificate (kubeadm: certSANs)",
		v.key.Namespace, v.key.Name,
	)
}

// checkWatch keeps a watch open for a while, to detect anything that cuts streams. The end of the time for the check is
// not a cut.
func checkWatch(whole context.Context, v *visit) finding {
	if f := v.cannotAsk(); f != nil {
		return *f
	}
	if v.broken[HopAuthentication] {
		return skipped("requests are not answered")
	}
	client, server, err := v.client()
	if err != nil {
		return skipped("the kubeconfig cannot be used")
	}
	defer client.CloseIdleConnections()
	long := v.watchTime()
	ctx, cancel := context.WithCancel(whole)
	defer cancel()
	// The apiserver ends a watch after timeoutSeconds, which must be later than this check does.
	url := fmt.Sprintf(
		"%s/api/v1/namespaces?watch=true&resourceVersion=0&timeoutSeconds=%d", server, int(long.Seconds())+60,
	)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return skipped("the kubeconfig cannot be used")
	}
	opening := time.AfterFunc(requestTime, cancel)
	response, err := client.Do(request)
	switch {
	case !opening.Stop() || err != nil && whole.Err() == nil:
		return broken(
			"a watch does not open", "requests are answered but streams are not: a device on the path buffers responses",
			"check for a proxy between this machine and the gateway, and between edge and apiserver",
		)
	case err != nil:
		return unknown("the time for the check ended before a watch was open", moreTime)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return broken(
			fmt.Sprintf("the answer to a watch of namespaces is %d", response.StatusCode),
			"the user of the kubeconfig may not watch namespaces", "grant it the permissions that Cluster API needs",
		)
	}
	began := time.Now()
	cut := time.AfterFunc(long, cancel)
	_, err = io.Copy(io.Discard, response.Body)
	if !cut.Stop() {
		return ok("a watch stayed open for %s", long)
	}
	after := time.Since(began).Round(time.Millisecond)
	if whole.Err() != nil {
		return unknown(fmt.Sprintf("the time for the check ended after a watch was open for %s of %s", after, long), moreTime)
	}
	if err == nil {
		err = io.EOF
	}
	return broken(
		fmt.Sprintf("a watch ended after %s: %s", after, text(err)),
		"streams are closed on the path: a tunnel was just lost, or a proxy has a short timeout",
		"run the check again; if it persists, see the hop tunnels, and the timeouts of proxies between edge and apiserver",
	)
}
