package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// startProxy runs `fairlead proxy` until the end of the test, and waits until it serves. stop ends it and checks that
// it succeeds.
func (l *laptop) startProxy(t *testing.T) (port string, errs *logtest.Journal, stop func()) {
	t.Helper()
	port = strconv.Itoa(freeport.TCP(t))
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var out logtest.Journal
	errs = &logtest.Journal{}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"proxy", "--port=" + port, "--kubeconfig=" + l.kubeconfig, "--context=good"}, &out, errs)
	}()
	kubetest.Eventually(t, "the proxy serves", func() error {
		if !strings.Contains(out.String(), "http://127.0.0.1:"+port+" serves ") {
			return errors.New(out.String() + errs.String())
		}
		return nil
	})
	return port, errs, func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("exit code %d: %s", code, errs.String())
		}
	}
}

// kubeconfigVia returns a client of the kubeconfig that the command prints, and what it prints to standard error.
func (l *laptop) kubeconfigVia(t *testing.T, via, port string) (config *rest.Config, note string) {
	t.Helper()
	out, note := l.shows(t, 0, "kubeconfig", "-n", l.key.Namespace, "c1", "--via="+via, "--proxy-port="+port)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(out))
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, note)
	}
	return config, note
}

// get sends one request on a connection of its own.
func get(t *testing.T, config *rest.Config) error {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Timeout = 30 * time.Second
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != "workload apiserver" {
		return fmt.Errorf("%w: %q", err, text)
	}
	return nil
}

// TestProxyOutlivesItsGateways uses a workload cluster through the proxy while gateways end, return and end again.
func TestProxyOutlivesItsGateways(t *testing.T) {
	l := newLaptop(t)
	zero, one := l.gateway(t, "gateway-0", corev1.ConditionTrue), l.gateway(t, "gateway-1", corev1.ConditionTrue)
	port, errs, stop := l.startProxy(t)
	config, note := l.kubeconfigVia(t, "auto", port)
	if !strings.Contains(note, "chose the local proxy, because the apiserver does not answer at 10.1.1.1:3128") ||
		!strings.Contains(note, "; it answers") {
		t.Errorf("the command printed %q", note)
	}
	used := func(when string, times int) {
		t.Helper()
		for range times {
			if err := get(t, config); err != nil {
				t.Errorf("%s: %v\n%s", when, err, errs.String())
			}
		}
	}
	used("two gateways", 4)
	l.gateways["gateway-0"].Kill()
	used("a gateway has ended, and its Pod counts as ready", 6)
	l.deletePod(t.Context(), zero)
	used("a gateway's Pod is gone", 6)
	l.gateway(t, "gateway-0", corev1.ConditionTrue)
	l.deletePod(t.Context(), one)
	l.gateways["gateway-1"].Kill()
	used("the first gateway is back, and the second gone", 6)
	if errs.String() != "" {
		t.Errorf("connections failed: %s", errs.String())
	}
	stop()
	if err := get(t, config); err == nil {
		t.Error("the proxy still serves after its end")
	}
}

// TestProxyServesModeSNI uses a kubeconfig of mode sni whose server is the address of the gateways.
func TestProxyServesModeSNI(t *testing.T) {
	l := newLaptop(t)
	l.setMode(t)
	l.gateway(t, "gateway-0", corev1.ConditionTrue)
	port, _, stop := l.startProxy(t)
	defer stop()
	address, note := l.kubeconfigVia(t, "address", port)
	if address.Proxy != nil || note != "" {
		t.Errorf("by address it has a proxy, and the command printed %q", note)
	}
	config, note := l.kubeconfigVia(t, "proxy", port)
	if !strings.Contains(note, "chose the local proxy, as --via requires; it answers") {
		t.Errorf("the command printed %q", note)
	}
	if err := get(t, config); err != nil {
		t.Error(err)
	}
}

// TestProxyAcceptsOnlyItsNames sends what a program on the same machine could send.
func TestProxyAcceptsOnlyItsNames(t *testing.T) {
	l := newLaptop(t)
	gateway := l.gateway(t, "gateway-0", corev1.ConditionTrue)
	port, _, stop := l.startProxy(t)
	defer stop()
	ask := func(request string) string {
		t.Helper()
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(conn, request)
		status := make([]byte, 512)
		n, _ := conn.Read(status)
		line, _, _ := strings.Cut(string(status[:n]), "\r\n")
		return line
	}
	for request, want := range map[string]string{
		"CONNECT " + l.hostname + ":6443":                  "HTTP/1.1 200 ",
		"CONNECT " + strings.ToUpper(l.hostname) + ".:443": "HTTP/1.1 200 ",
		"CONNECT 127.0.0.1:22":                             `HTTP/1.1 403 "127.0.0.1" is no name of a Tunnel`,
		"CONNECT xds-server.fairlead-system.svc:18000":     "HTTP/1.1 403 ",
		"CONNECT other." + string(configDomain) + ":6443":  "HTTP/1.1 403 ",
		"CONNECT " + l.hostname:                            "HTTP/1.1 400 ",
		"GET http://" + l.hostname + "/":                   "HTTP/1.1 405 ",
		"GET /":                                            "HTTP/1.1 405 ",
	} {
		if got := ask(request + " HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
	for _, address := range otherAddresses(t) {
		if conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, port), time.Second); err == nil {
			_ = conn.Close()
			t.Errorf("the proxy listens on %s", address)
		}
	}
	// Without a ready gateway the client gets the reason.
	l.deletePod(t.Context(), gateway)
	l.gateways["gateway-0"].Kill()
	config, note := l.kubeconfigVia(t, "proxy", port)
	if !strings.Contains(note, "; run: fairlead proxy --kubeconfig="+l.kubeconfig+" --context=good --port="+port+" &") {
		t.Errorf("the command printed %q", note)
	}
	if err := get(t, config); err == nil || !strings.Contains(err.Error(), "no ready Pod of a gateway") {
		t.Errorf("got %v", err)
	}
}

// otherAddresses returns the addresses of this machine that are not loopback.
func otherAddresses(t *testing.T) (all []string) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			all = append(all, n.IP.String())
		}
	}
	return all
}

func TestProxyFailsAtItsStart(t *testing.T) {
	l := newLaptop(t)
	free := "--port=" + strconv.Itoa(freeport.TCP(t))
	l.mustNot(t, "no ready Pod of a gateway (app.kubernetes.io/name=gateway) in namespace fairlead-system, of 0", "proxy",
		free)
	l.gateway(t, "gateway-0", corev1.ConditionFalse)
	l.mustNot(t, "in namespace fairlead-system, of 1", "proxy", free)
	l.gateway(t, "gateway-1", corev1.ConditionTrue)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	l.mustNot(t, "another process listens on 127.0.0.1:"+port, "proxy", "--port="+port)
	denied := &person{l.Client, impersonating(t, l.person, "nobody")}
	denied.mustNot(t, "listing Tunnels: ", "proxy", free)
	reader := &person{l.Client, impersonating(t, l.person, "reader")}
	allow(t, l.person, "reader", l.key.Namespace, "", ownerRules()...)
	kubetest.Eventually(t, "the list of Pods is forbidden", func() error {
		_, err := reader.does(t, "proxy", free, "-n", l.key.Namespace)
		if err == nil || !strings.Contains(err.Error(), "which the Role fairlead-proxy allows") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	allow(t, l.person, "reader", collect.DefaultNamespace, "", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"},
	})
	kubetest.Eventually(t, "the port-forward is forbidden", func() error {
		_, err := reader.does(t, "proxy", free, "-n", l.key.Namespace)
		if err == nil || !strings.Contains(err.Error(), "not allowed to create pods/portforward") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
}

// TestProxyRunsACommand runs the real kubectl through the proxy, as a user with the Role fairlead-proxy and what a
// namespace's owner has.
func TestProxyRunsACommand(t *testing.T) {
	l := newLaptop(t)
	l.gateway(t, "gateway-0", corev1.ConditionTrue)
	kubectl, err := filepath.Abs("../../bin/kubectl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kubectl); err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no kubectl: run `make tools`: %v", err)
		}
		t.Skipf("no kubectl: run `make tools`: %v", err)
	}
	deployViewer(t, l.person)
	allow(t, l.person, "owner", collect.DefaultNamespace, "fairlead-proxy")
	allow(t, l.person, "owner", l.key.Namespace, "", ownerRules()...)
	owner := impersonating(t, l.person, "owner")
	through := func(script string) (code int, stdout, stderr string) {
		t.Helper()
		var out, errs strings.Builder
		code = run(t.Context(), []string{
			"proxy", "--kubeconfig=" + owner, "--context=good", "-n", l.key.Namespace, "c1",
			"--", "sh", "-c", script,
		}, &out, &errs)
		return code, out.String(), errs.String()
	}
	code, out, errs := through(`echo "$KUBECONFIG"; stat -c %a "$KUBECONFIG"; ` + kubectl + " get --raw /version")
	printed := strings.SplitN(out, "\n", 3)
	if code != 0 || len(printed) != 3 || printed[1] != "600" || printed[2] != "workload apiserver" {
		t.Fatalf("exit code %d, printed %q and %q", code, out, errs)
	}
	if _, err := os.Stat(filepath.Dir(printed[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kubeconfig is still there: %v", err)
	}
	if code, _, errs := through("exit 7"); code != 7 || errs != "" {
		t.Errorf("exit code %d, printed %q", code, errs)
	}
}
