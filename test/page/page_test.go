// Package page_test opens the status page of a real xds-server in a real browser. The xds-server reads a real
// kube-apiserver with the deployed permissions.
package page_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"
	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/browser"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
)

// patience is long enough for a busy machine.
const patience = 90 * time.Second

// kube has the deployed permissions of the xds-server, and the additional ones of a page with tokens.
var kube = kubetest.Server{CRDs: true, Prepare: func(ctx context.Context, config *rest.Config) error {
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	return kubetest.Deploy(ctx, admin, "namespace.yaml", "xds-server.yaml", "page-tokens/page.yaml")
}}

// chromium is the browser of all tests here.
var chromium browser.Browser

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code := kube.Run(m)
	chromium.Stop()
	os.Exit(code)
}

func TestThePageShowsTheFleet(t *testing.T) {
	w := newWorld(t)
	namespace := kubetest.NewNamespace(t, w.admin)
	for i := range 30 {
		w.tunnel(t, namespace, fmt.Sprintf("shop-%02d", i))
	}
	address := w.start(t, "--page-listen", "127.0.0.1:0")
	url := "http://" + address + "/"
	tab := chromium.Open(t, url+"?namespace="+namespace)
	tab.Until(t, patience, `document.querySelectorAll("table.fleet tbody tr").length === 30`)
	const row = `[...document.querySelectorAll("tbody tr")].find((r) => r.querySelector("a").textContent === "shop-07")`
	tab.Until(t, patience, row+`.innerText.includes("OK") && `+row+`.innerText.includes("1 / 1")`)

	// The controller's changes appear on the page within seconds.
	began := time.Now()
	w.patch(t, namespace, "shop-07", "the cable was cut")
	tab.Until(t, patience, row+`.innerText.includes("the cable was cut")`)
	t.Logf("from a change in the management cluster to the table: %s at most", time.Since(began).Round(time.Millisecond))

	browser.Eval[chromedp.Void](t, tab, row+`.querySelector("a").click()`)
	tab.Until(t, patience, `document.querySelectorAll(".hop[data-id]").length >= 10`)
	for id, want := range map[string]string{
		"cluster": "OK", "kubeconfig": "Not tested from here", "authentication": "Not tested from here", "tunnels": "Broken",
		// The server may not read the Secret. It reads these results from the Tunnel's status.
		"name": "127.0.0.1 is an IP address (according to the Tunnel's status)", "port": w.gateway + " accepts connections",
	} {
		text := browser.Eval[string](t, tab, fmt.Sprintf(`document.querySelector(".hop[data-id=%s]").innerText`, id))
		if !strings.Contains(text, want) {
			t.Errorf("hop %s: %q, want %q in it", id, text, want)
		}
	}
	tab.Until(t, patience, `document.querySelector(".verdict").innerText.includes("the cable was cut")`)
	w.patch(t, namespace, "shop-07", "")
	tab.Until(t, patience, `document.querySelector(".verdict").innerText.includes("OK")`)

	browser.Eval[chromedp.Void](t, tab, `document.querySelector(".back").click()`)
	tab.Until(t, patience, row+`.innerText.includes("OK")`)
	w.remove(t, namespace, "shop-07")
	tab.Until(t, patience, `!`+row+` && document.querySelectorAll("table.fleet tbody tr").length === 29`)
	for _, problem := range tab.Problems() {
		t.Errorf("the browser complains: %s", problem)
	}
}

// TestThePageShowsNetworks of a Cluster that has no tunnel of its own, and their changes.
func TestThePageShowsNetworks(t *testing.T) {
	w := newWorld(t)
	namespace := kubetest.NewNamespace(t, w.admin)
	w.networks(t, namespace, "shop", "site1", "site2")
	address := w.start(t, "--page-listen", "127.0.0.1:0")
	tab := chromium.Open(t, "http://"+address+"/?namespace="+namespace)
	const row = `document.querySelector("table.fleet tbody tr")`
	tab.Until(t, patience, row+`?.innerText.includes("2 / 2")`)
	browser.Eval[chromedp.Void](t, tab, row+`.querySelector("a").click()`)
	const networks = `document.querySelector(".part-networks").innerText`
	for _, text := range []string{"site1", "site2", "10.21.0.0/16", "gateway-0: 2", "1 / 1"} {
		tab.Until(t, patience, fmt.Sprintf(`%s.includes(%q)`, networks, text))
	}
	tab.Until(t, patience, `document.querySelector(".part-egress").innerText.includes("node-shop.egress")`)
	tab.Until(t, patience, `document.querySelector(".part-edges").innerText.includes("node-site1.network")`)
	w.network(t, namespace, "site1", "the cable of site1 was cut")
	tab.Until(t, patience, networks+`.includes("the cable of site1 was cut: see the logs of the edges")`)
	tab.Until(t, patience, `document.querySelector(".verdict").innerText.includes("network site1: the cable")`)
	browser.Eval[chromedp.Void](t, tab, `document.querySelector(".back").click()`)
	tab.Until(t, patience, row+`.innerText.includes("1 / 2")`)
	for _, problem := range tab.Problems() {
		t.Errorf("the browser complains: %s", problem)
	}
}

func TestBeyondLoopbackTheManagementClusterAuthorizesReaders(t *testing.T) {
	w := newWorld(t)
	namespace := kubetest.NewNamespace(t, w.admin)
	w.tunnel(t, namespace, "shop")
	certificate, key := selfSigned(t)
	address := w.start(t, "--page-listen", "0.0.0.0:0", "--page-certificate", certificate, "--page-key", key)
	address = "127.0.0.1" + address[strings.LastIndex(address, ":"):]
	reader, stranger := w.account(t, "reader"), w.account(t, "stranger")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: "page-reader",
		}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fairlead-page-reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "reader", Namespace: "fairlead-system"}},
	}
	if err := w.admin.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	c := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
	}
	get := func(token string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/api/fleet", http.NoBody)
		if err != nil {
			return nil, err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := c.Do(r)
		if err == nil {
			err = response.Body.Close()
		}
		return response, err
	}
	for token, want := range map[string]int{"": 401, "nonsense": 401, stranger: 403, reader: 200} {
		eventually.True(t, patience, fmt.Sprint("an answer of ", want), func() error {
			response, err := get(token)
			if err == nil && (response.StatusCode != want || response.ProtoMajor != 2) {
				err = fmt.Errorf("%s %s", response.Proto, response.Status)
			}
			return err
		})
	}
	tab := chromium.Open(t, "https://"+address+"/", with(reader))
	tab.Until(
		t,
		patience,
		`document.querySelectorAll("table.fleet tbody tr").length > 0 && document.getElementById("connection").textContent === "Live"`,
	)
	if log := w.log(t); strings.Contains(log, reader) || strings.Contains(log, stranger) {
		t.Error("a token is in the log")
	}
}

// with makes a tab send a token with each request, and accept any certificate.
func with(token string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(
			ctx, tab, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true},
		)
		if err != nil {
			return err
		}
		_, err = cdp.Call(
			ctx, tab, network.SetExtraHTTPHeaders,
			network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Authorization": "Bearer " + token}},
		)
		return err
	})
}

// A large fleet costs memory only while the page is turned on. The test takes minutes, so it runs only if PAGE_FULL is
// set.
func TestAServerShowsTenThousandClusters(t *testing.T) {
	if os.Getenv("PAGE_FULL") == "" {
		t.Skip("PAGE_FULL is not set")
	}
	const clusters, readers = 10_000, 30
	w := newWorld(t)
	namespace := kubetest.NewNamespace(t, w.admin)
	began := time.Now()
	w.tunnels(t, namespace, clusters)
	t.Logf("%d Clusters and Tunnels made in %s", clusters, time.Since(began).Round(time.Second))
	w.start(t)
	w.synced(t)
	off := w.memory(t)
	w.stop()
	address := w.start(t, "--page-listen", "127.0.0.1:0")
	tab := chromium.Open(t, "http://"+address+"/?namespace="+namespace)
	tab.Until(t, 2*patience, `document.getElementById("count").textContent.startsWith("10,000 ")`)
	for range readers {
		w.read(t, "http://"+address+"/api/fleet/events")
	}
	began = time.Now()
	w.patch(t, namespace, "shop-00007", "the cable was cut")
	tab.Until(t, patience, `document.querySelector("tbody tr").innerText.includes("the cable was cut")`)
	on := w.memory(t)
	t.Logf(
		"%d Clusters: the xds-server has %d MB without the page, and %d MB with it and %d readers; a change is in the "+
			"table after %s at most",
		clusters,
		off>>20,
		on>>20,
		readers+1,
		time.Since(began).Round(time.Millisecond),
	)
	if on-off > 250<<20 {
		t.Errorf("the page takes %d MB", (on-off)>>20)
	}
}

// account returns the token of a ServiceAccount.
func (w *world) account(t *testing.T, name string) string {
	t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "fairlead-system", Name: name}}
	if err := w.admin.Create(t.Context(), sa); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := w.admin.SubResource("token").Create(t.Context(), sa, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// patch sets the error message of a Tunnel; an empty message means no error.
func (w *world) patch(t *testing.T, namespace, name, message string) {
	t.Helper()
	tunnel := &v1alpha1.Tunnel{}
	if err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, tunnel); err != nil {
		t.Fatal(err)
	}
	w.status(tunnel, message)
	if err := w.admin.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
}

func (w *world) remove(t *testing.T, namespace, name string) {
	t.Helper()
	for _, o := range []client.Object{&v1alpha1.Tunnel{}, kubetest.Cluster(namespace, name)} {
		o.SetNamespace(namespace)
		o.SetName(name)
		if err := w.admin.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}
