package networks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
)

// hardware proves that an Ironic and a BMC in a network are reached through named targets, with the libraries of real
// clients. The servers are stand-ins with TLS.
func (f *fleet) hardware(t *testing.T) {
	site, err := f.site2.AddMachine(t.Context(), "hardware", 40)
	must(t, err)
	authority, err := pki.NewAuthority("hardware")
	must(t, err)
	ca := f.File("hardware-ca.crt")
	must(t, os.WriteFile(ca, authority.CertPEM, 0o600))
	f.setTargets(t, "site2", []v1alpha1.NetworkTarget{
		{Name: "ironic", Address: site.Address.String(), Port: 6385}, {Name: "bmc", Address: site.Address.String()},
	})
	for name, server := range map[string]struct {
		client, path, want string
		port               int
		handler            func(done *atomic.Int32) http.Handler
	}{
		"ironic": {"ironic", "/v1", "Ironic powers on: node-1", 6385, ironic},
		"bmc":    {"redfish", "", "the BMC restarts: System", 443, redfish},
	} {
		target := f.targetName(t, name, "site2", "shop")
		var done atomic.Int32
		serveAs(t, site, authority, target, server.port, server.handler(&done))
		for gateway := range f.Gateways {
			must(t, f.Network.Management.AddHost(target, netns.InsideAddress(gateway)))
		}
		that(t, "the client library of "+name+" reaches it by SNI, and by the proxy of its environment", func(t *testing.T) {
			for _, proxy := range []string{"", "http://" + netns.HostPort(netns.InsideAddress(1).String(), netns.ConnectPort)} {
				eventually(t, func(ctx context.Context) error {
					cmd := f.Network.Management.Command(ctx, f.Parts.RealPath("named-targets"), server.client,
						"-url=https://"+target+":6443"+server.path, "-ca="+ca)
					cmd.Env = append(os.Environ(), "HTTPS_PROXY="+proxy)
					out, err := cmd.CombinedOutput()
					if err != nil || !strings.Contains(string(out), server.want) {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				})
			}
			if done.Load() < 2 {
				t.Errorf("%d changes of power arrived, want 2", done.Load())
			}
		})
	}
}

// serveAs serves HTTPS on a machine, with a certificate for a name.
func serveAs(t *testing.T, at *netns.Site, ca *pki.Authority, name string, port int, handler http.Handler) {
	t.Helper()
	pair, err := ca.Issue(pki.LeafSpec{CommonName: name, Names: []string{name}, Usage: x509.ExtKeyUsageServerAuth})
	must(t, err)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	must(t, err)
	listener, err := at.Listen(t.Context(), netip.AddrPortFrom(at.Address, uint16(port)).String())
	must(t, err)
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: answerTime,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
}

// answer answers with JSON.
func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

// ironic is a stand-in for Ironic with one node. It counts the changes of its power.
func ironic(done *atomic.Int32) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "lab" || password != "lab" {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		answer(w, http.StatusOK, map[string]any{"nodes": []any{map[string]any{"uuid": "u1", "name": "node-1"}}})
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, map[string]any{}) })
	mux.HandleFunc("PUT /v1/nodes/u1/states/power", func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"power on"`) {
			done.Add(1)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	return mux
}

// redfish is a stand-in for a BMC with one system. It counts its restarts.
func redfish(done *atomic.Int32) http.Handler {
	const root, session, token = "/redfish/v1", "/redfish/v1/SessionService/Sessions", "token-1"
	mux := http.NewServeMux()
	get := func(path string, value map[string]any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if path != root+"/{$}" && r.Header.Get("X-Auth-Token") != token {
				http.Error(w, "unauthorized", http.StatusUnauthorized)
				return
			}
			answer(w, http.StatusOK, value)
		})
	}
	link := func(path string) map[string]any { return map[string]any{"@odata.id": path} }
	get(root+"/{$}", map[string]any{
		"@odata.id": root + "/", "Id": "RootService", "Name": "Root", "RedfishVersion": "1.15.0",
		"Systems": link(root + "/Systems"), "Links": map[string]any{"Sessions": link(session)},
	})
	get(root+"/Systems", map[string]any{
		"@odata.id": root + "/Systems", "Name": "Systems", "Members": []any{link(root + "/Systems/1")},
		"Members@odata.count": 1,
	})
	get(root+"/Systems/1", map[string]any{
		"@odata.id": root + "/Systems/1", "Id": "1", "Name": "System", "PowerState": "On",
		"Actions": map[string]any{"#ComputerSystem.Reset": map[string]any{
			"target": root + "/Systems/1/Actions/ComputerSystem.Reset",
		}},
	})
	mux.HandleFunc("POST "+session, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Auth-Token", token)
		w.Header().Set("Location", session+"/1")
		answer(w, http.StatusCreated, map[string]any{"@odata.id": session + "/1", "Id": "1", "Name": "Session"})
	})
	mux.HandleFunc("DELETE "+session+"/1", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("POST "+root+"/Systems/1/Actions/ComputerSystem.Reset", func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "ForceRestart") {
			done.Add(1)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}
