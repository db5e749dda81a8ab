package envoy_test

import (
	"fmt"
	"testing"

	"github.com/fairlead/fairlead/pkg/model"
)

// TestEveryNameHasATunnel proves that a workload cluster is reached by all of its names at the same time, even if it
// has more names than reverse tunnels.
func TestEveryNameHasATunnel(t *testing.T) {
	hostname := "c1.prod." + string(domain)
	var extra []string
	for i := range 5 {
		extra = append(extra, fmt.Sprintf("api-%d.c1.example.org", i))
	}
	workload := newAuthority(t)
	api := newAPIServer(t, "api-1", workload, append([]string{hostname}, extra...)...)
	c1 := cluster(
		t,
		"c1",
		model.Endpoint{Host: "127.0.0.1", Port: endpoint(t, api.Listener.Addr().String()).Port},
		extra...)
	in := newInstallation(t, 1, c1)
	in.workload = workload
	in.startEdge(t, c1)
	for range 2 {
		for _, name := range c1.Names() {
			works(t, in.getBySNI, in.gateways[0], name, "api-1 "+name)
			works(t, in.getByConnect, in.gateways[0], name, "api-1 "+name)
		}
	}
}
