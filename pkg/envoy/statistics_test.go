package envoy_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy"
)

// TestStatisticsOfEnvoyClusters checks a gateway's statistics by default, and with statistics for each Envoy cluster.
func TestStatisticsOfEnvoyClusters(t *testing.T) {
	in := newInstallation(t, 1, cluster(t, "c1", freeport.Endpoint(t)))
	in.startGateway(t, "gateway-0", envoy.BootstrapConfig{ClusterStatistics: true})
	published := regexp.MustCompile(envoy.ClusterStatistics)
	for i, want := range []bool{false, true} {
		stats, err := in.gateways[i].Admin(t.Context(), http.MethodGet, "/stats")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(stats, "\ncluster."); got != want {
			t.Errorf("gateway %d counts for each Envoy cluster: %t, want %t", i, got, want)
		}
		for line := range strings.Lines(stats) {
			if name, _, _ := strings.Cut(line, ":"); strings.HasPrefix(name, "cluster.") && !published.MatchString(name) {
				t.Errorf("gateway %d counts %s, which no agent publishes", i, name)
			}
		}
		if !strings.Contains(stats, "\nlistener.public.downstream_cx_total") ||
			!strings.Contains(stats, "\ncluster_manager.active_clusters") {
			t.Errorf("gateway %d counts too little:\n%s", i, stats)
		}
	}
}
