package envoy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/envoy"
)

// TestStatisticsOfEnvoyClusters looks at what a gateway counts by default, and if it is told to count for each Envoy cluster.
func TestStatisticsOfEnvoyClusters(t *testing.T) {
	in := newInstallation(t, 1, cluster(t, "c1", freePort(t)))
	in.startGateway(t, "gateway-0", envoy.BootstrapConfig{ClusterStatistics: true})
	for i, want := range []bool{false, true} {
		stats, err := in.gateways[i].Admin(t.Context(), http.MethodGet, "/stats")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(stats, "\ncluster."); got != want {
			t.Errorf("gateway %d counts for each Envoy cluster: %t, want %t", i, got, want)
		}
		if !strings.Contains(stats, "\nlistener.public.downstream_cx_total") || !strings.Contains(stats, "\ncluster_manager.active_clusters") {
			t.Errorf("gateway %d counts too little:\n%s", i, stats)
		}
	}
}
