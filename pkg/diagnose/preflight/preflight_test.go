package preflight

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// gateway starts an HTTPS server with HTTP/2 in place of the control channel. Its certificate is for *.example.com.
func gateway(t *testing.T) (*httptest.Server, *Gateways) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	e, err := model.ParseEndpoint(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return s, &Gateways{
		Addresses: []model.Endpoint{e}, Domain: "example.com", Now: time.Now,
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}
}

func find(all []check.Result, id check.ID) check.Result {
	for _, r := range all {
		if r.ID == id {
			return r
		}
	}
	return check.Result{}
}

func TestEdgeFindsAClosedPortAndAnotherServer(t *testing.T) {
	s, g := gateway(t)
	all := g.Test(t.Context())
	for _, id := range []check.ID{TestProxy, TestName, TestPort, TestTLS, TestClock, TestPackets} {
		if r := find(all, id); r.Status != check.OK {
			t.Errorf("%s: %+v", id, r)
		}
	}
	g.Domain = "example.org"
	r := find(g.Test(t.Context()), TestTLS)
	if r.Status != check.Broken || !strings.Contains(r.Detail, "not for control") {
		t.Errorf("of a server with another name: %+v", r)
	}
	g.CA = []byte("no certificate")
	if r := find(g.Test(t.Context()), TestTLS); r.Status != check.Broken || r.Cure == "" {
		t.Errorf("without a CA: %+v", r)
	}
	s.Close()
	all = g.Test(t.Context())
	if r := find(all, TestPort); r.Status != check.Broken || !strings.Contains(r.Detail, "nothing listens there") {
		t.Errorf("of a closed port: %+v", r)
	}
	if r := find(all, TestTLS); r.ID != "" {
		t.Errorf("TLS was tested without a connection: %+v", r)
	}
}

func TestPacketsAndIdle(t *testing.T) {
	s, _ := gateway(t)
	conn, err := tls.Dial("tcp", s.Listener.Addr().String(), &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, // the test is about what follows the handshake
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if r := Packets(t.Context(), conn); r.Status != check.OK {
		t.Errorf("packets: %+v", r)
	}
	if r := idle(t.Context(), conn, 50*time.Millisecond); r.Status != check.OK {
		t.Errorf("idle: %+v", r)
	}
	s.CloseClientConnections()
	if r := idle(t.Context(), conn, 50*time.Millisecond); r.Status != check.Broken || r.Cure == "" {
		t.Errorf("of a connection that was dropped: %+v", r)
	}
	near, far := net.Pipe()
	_ = far.Close()
	if r := Packets(t.Context(), near); r.Status != check.Broken || r.Cure == "" {
		t.Errorf("of a server that closes: %+v", r)
	}
}

func TestNameWithoutRecord(t *testing.T) {
	if r := Name(t.Context(), "127.0.0.1"); r.Status != check.OK {
		t.Errorf("of an address: %+v", r)
	}
	if r := Name(t.Context(), "gateway.invalid"); r.Status != check.Broken || r.Cure == "" {
		t.Errorf("of a name without a record: %+v", r)
	}
}

func TestProxyIsNamedWithoutItsPassword(t *testing.T) {
	_, g := gateway(t)
	var err error
	if g.Proxy, err = dial.ParseProxy("http://user:secret@127.0.0.1:1", "", nil); err != nil {
		t.Fatal(err)
	}
	g.Addresses[0].Host = "192.0.2.1"
	r := find(g.Test(t.Context()), TestProxy)
	if r.Status != check.OK || !strings.Contains(r.Detail, "127.0.0.1:1") || strings.Contains(r.Detail, "secret") {
		t.Errorf("got %+v", r)
	}
}

// TestPermissionsMatchTheManifests compares the list of permissions with the kinds of the manifests.
func TestPermissionsMatchTheManifests(t *testing.T) {
	files, err := filepath.Glob("../../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("found only %q: %v", files, err)
	}
	files = append(files, filepath.FromSlash("../../../deploy/kubernetes/crd/fairlead.dev_tunnels.yaml"))
	kind := regexp.MustCompile(`(?m)^apiVersion: (?:(\S+)/)?v1\nkind: (\S+)$`)
	known := map[string]bool{}
	for _, p := range Permissions() {
		known[p.Group+"/"+p.Resource] = true
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range kind.FindAllStringSubmatch(string(text), -1) {
			plural := strings.ToLower(m[2]) + "s"
			plural = strings.Replace(strings.Replace(plural, "policys", "policies", 1), "classs", "classes", 1)
			if found++; !known[m[1]+"/"+plural] {
				t.Errorf("%s has the kind %s of %q, which is not in Permissions", file, m[2], m[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("found only %d objects", found)
	}
}

// reviews starts a server that answers access reviews, and denies some questions: a verb and the kind.
func reviews(t *testing.T, denied ...string) kubernetes.Interface {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Spec.ResourceAttributes == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = !slices.Contains(denied, asked.Verb+" "+asked.Namespace+"/"+asked.Resource)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	clients, err := kubernetes.NewForConfig(&rest.Config{
		Host: s.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// TestPermissionsForRoles has users that may create roles, but not with permissions that they do not have themselves.
func TestPermissionsForRoles(t *testing.T) {
	for name, tc := range map[string]struct {
		denied       []string
		want         check.Status
		detail, cure string
	}{
		"all":          {nil, check.OK, "roles with any permissions", ""},
		"no escalate":  {[]string{"escalate /clusterroles"}, check.Warning, "escalate clusterroles", "escalate and bind"},
		"no bind":      {[]string{"bind fairlead/roles"}, check.Warning, "bind roles.rbac", "cluster-admin"},
		"another role": {[]string{"bind /roles"}, check.OK, "", ""}, // only those in the namespace are needed
		"no create": {
			[]string{"create /clusterroles", "bind /clusterroles"}, check.Broken, "create clusterroles.rbac", "cluster-admin",
		},
	} {
		m := &Management{Namespace: "fairlead"}
		got := m.permissions(t.Context(), reviews(t, tc.denied...))
		if got.Status != tc.want || !strings.Contains(got.Detail, tc.detail) || !strings.Contains(got.Cure, tc.cure) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
