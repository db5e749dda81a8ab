package test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/preflight"
	"github.com/fairlead/fairlead/pkg/model"
)

// configMaps reads ConfigMaps by their names. nil: the user may read none.
type configMaps map[string]map[string]string

func (c configMaps) Get(_ context.Context, key client.ObjectKey, to client.Object, _ ...client.GetOption) error {
	kind := schema.GroupResource{Resource: "configmaps"}
	data, ok := c[key.Name]
	switch {
	case c == nil:
		return apierrors.NewForbidden(kind, key.Name, errors.New("no role"))
	case !ok:
		return apierrors.NewNotFound(kind, key.Name)
	}
	to.(*corev1.ConfigMap).Data = data
	return nil
}

func (configMaps) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nothing is listed here")
}

// TestThePublicAddressOfAnInstallation checks that TLS and large packets are tested as soon as there is an installation
// to compare with, and that the result names a device that answers with a certificate of its own.
func TestThePublicAddressOfAnInstallation(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.EnableHTTP2 = true // its certificate is for *.example.com
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	e, err := model.ParseEndpoint(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := certs.NewCA("of another installation", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	with := func(ca []byte) configMaps {
		return configMaps{
			v1alpha1.SettingsConfigMapName:     {"TUNNEL_DOMAIN": "example.com"},
			v1alpha1.InstallationConfigMapName: {v1alpha1.TrustBundleKey: string(ca)},
		}
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, tc := range map[string]struct {
		objects configMaps
		want    map[check.ID]check.Status // besides the name and the port
		cure    string                    // of the test of TLS
	}{
		"before the installation": {
			configMaps{}, map[check.ID]check.Status{preflight.TestTLS: check.Skipped}, "after the installation",
		},
		"an installation without a CA": {
			with(nil), map[check.ID]check.Status{preflight.TestTLS: check.Unknown}, "controller runs",
		},
		"an installation whose controller has not run": {
			configMaps{v1alpha1.SettingsConfigMapName: {"TUNNEL_DOMAIN": "example.com"}},
			map[check.ID]check.Status{preflight.TestTLS: check.Unknown},
			"controller runs",
		},
		"an installation that may not be read": {
			nil, map[check.ID]check.Status{preflight.TestTLS: check.Unknown}, "may get ConfigMaps",
		},
		"the installation answers": {
			with(own), map[check.ID]check.Status{
				preflight.TestTLS: check.OK, preflight.TestClock: check.OK, preflight.TestPackets: check.OK,
			}, "",
		},
		"another certificate": {
			with(other.CertPEM()), map[check.ID]check.Status{preflight.TestTLS: check.Broken}, "exempt it from TLS inspection",
		},
	} {
		f := &preflightFlags{installation: "fairlead-system"}
		got := f.publicResults(t.Context(), tc.objects, e)
		tc.want[preflight.TestName], tc.want[preflight.TestPort] = check.OK, check.OK
		for _, r := range got {
			if want := tc.want[r.ID]; r.Status != want {
				t.Errorf("%s: %s is %+v, want %q", name, r.ID, r, want)
			}
			if r.ID == preflight.TestTLS && !strings.Contains(r.Cure, tc.cure) {
				t.Errorf("%s: the cure is %q, want %q", name, r.Cure, tc.cure)
			}
		}
		if len(got) != len(tc.want) {
			t.Errorf("%s: got %d results, want %d", name, len(got), len(tc.want))
		}
	}
}
