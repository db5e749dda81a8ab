package hub

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func TestSeriesExistOnlyForExistingWorkloadClusters(t *testing.T) {
	h := New(domain, newRules(), newWorld(t).Log)
	for gateway, tunnels := range map[string][]*reportv1.Tunnel{
		"gateway-0": {
			{Key: "a", Node: "edge-1", TunnelId: idA},
			{Key: "b", Node: "edge-2", TunnelId: idA},
			{Key: "c", Node: "edge-9", TunnelId: idB},
		},
		"gateway-1": {{Key: "a", Node: "edge-1", TunnelId: idA}},
	} {
		s := &session{subject: gatewayOf(gateway), end: func(error) {}}
		h.begin(s)
		if err := h.gatewayReport(s, &reportv1.GatewayReport{Snapshot: true, Tunnels: tunnels}); err != nil {
			t.Fatal(err)
		}
	}
	for node, days := range map[string]int{"edge-1": 9, "edge-2": 7} {
		s := &session{subject: edgeOf(node, idA), end: func(error) {}}
		h.begin(s)
		report := &reportv1.EdgeReport{
			ApiServer: &reportv1.APIServer{CertificateNotAfter: timestamppb.New(time.Unix(int64(days)*86400, 0))},
		}
		if err := h.edgeReport(s, report); err != nil {
			t.Fatal(err)
		}
	}
	// idB has reports and no workload cluster; the last workload cluster has no reports.
	keys := map[string]model.Key{idA: {Namespace: "prod", Name: "c1"}, "none": {Namespace: "prod", Name: "c2"}}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(h.ClusterMetrics(func() map[string]model.Key { return keys }))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"fairlead_report_cluster_tunnels c1 prod": 3, "fairlead_report_cluster_edges c1 prod": 2,
		"fairlead_report_cluster_tunnels c2 prod": 0, "fairlead_report_cluster_edges c2 prod": 0,
		"fairlead_report_cluster_apiserver_leaf_expiry_timestamp_seconds c1 prod": 7 * 86400,
	}
	for name, value := range want {
		if there, ok := got[name]; !ok || there != value {
			t.Errorf("%s is %v (%v), want %v", name, there, ok, value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
}
