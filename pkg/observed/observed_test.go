package observed_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/observed"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

var noon = time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)

// TestFactsOfAnEdge has one row for each state: a fact that every view of an installation shows is decided here alone.
func TestFactsOfAnEdge(t *testing.T) {
	for state, want := range map[observed.State]struct{ revoked, hasTunnel, letIn, holds bool }{
		observed.Connected: {false, true, true, true},
		observed.Away:      {false, false, true, true},
		observed.Expired:   {false, false, false, true}, // by its state alone; its time is below
		observed.Revoked:   {true, false, false, false},
		observed.Unknown:   {false, false, true, true},
	} {
		t.Run(string(state), func(t *testing.T) {
			e := observed.Edge{State: state, NotAfter: noon.Add(time.Second)}
			got := struct{ revoked, hasTunnel, letIn, holds bool }{
				e.Revoked(), e.HasTunnel(), e.LetIn(),
				e.HoldsCertificate(noon),
			}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if e.HoldsCertificate(noon.Add(time.Second)) {
				t.Error("it holds a certificate that ends now")
			}
		})
	}
}

func TestTunnelsOfAnEdge(t *testing.T) {
	e := observed.Edge{Gateways: []observed.Gateway{
		{Name: "gateway-0", Tunnels: 2}, {Name: "gateway-1", Tunnels: 3, WorkersWithout: 1},
	}}
	if e.Tunnels() != 5 || observed.TunnelsByGateway(e.Gateways) != "gateway-0:2,gateway-1:3" {
		t.Errorf("got %d, %s", e.Tunnels(), observed.TunnelsByGateway(e.Gateways))
	}
	if got := e.WorkersWithout(); got != "1 workers of gateway-1" {
		t.Errorf("got %q", got)
	}
	if e = (observed.Edge{}); e.Tunnels() != 0 || e.WorkersWithout() != "" || observed.TunnelsByGateway(nil) != "" ||
		e.Cut() {
		t.Error("an edge without tunnels has some")
	}
}

func TestHealthOfAnAPIServer(t *testing.T) {
	for want, report := range map[observed.Health]*reportv1.APIServer{
		observed.HealthUnknown: nil,
		observed.Healthy:       {Healthy: true},
		observed.Unhealthy:     {Message: "nothing listens there"},
	} {
		e := observed.Edge{APIServer: observed.APIServerOf(report)}
		if got := e.Health(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestTheEndOfACertificate(t *testing.T) {
	if a := observed.APIServerOf(&reportv1.APIServer{}); !a.CertificateEnd.IsZero() {
		t.Errorf("an end that was not reported is %s", a.CertificateEnd)
	}
	a := observed.APIServerOf(&reportv1.APIServer{CertificateNotAfter: timestamppb.New(noon)})
	later := noon.Add(time.Hour)
	for _, pair := range [][2]time.Time{{noon, later}, {later, noon}, {{}, noon}, {noon, {}}} {
		if got := observed.Sooner(pair[0], pair[1]); !got.Equal(a.CertificateEnd) {
			t.Errorf("of %v it is %s", pair, got)
		}
	}
}
