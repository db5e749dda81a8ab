package probe_test

import (
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
)

var server kubetest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func TestARealAPIServer(t *testing.T) {
	config := server.Config(t)
	host := config.Host
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		host = u.Host
	}
	address, err := model.ParseEndpoint(host)
	if err != nil {
		t.Fatal(err)
	}
	got := probe.APIServers(t.Context(), []model.Endpoint{address})
	t.Logf("%+v", got)
	if !got.Healthy || got.Message != "" || got.Address != address.String() {
		t.Errorf("it is not healthy: %+v", got)
	}
	if !strings.HasPrefix(got.Version, "v1.") {
		t.Errorf("version %q", got.Version)
	}
	if !slices.Contains(got.CertificateNames, address.Host) || !got.CertificateNotAfter.After(time.Now()) {
		t.Errorf("certificate for %q until %s", got.CertificateNames, got.CertificateNotAfter)
	}
}
