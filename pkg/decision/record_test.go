package decision_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestRecord(t *testing.T) {
	good := candidate("c1", "a", older, "api.example.com")
	good.ClusterUID, good.Others = "u1", []model.Endpoint{{Host: "fd00::2", Port: 7443}}
	good.Limits = model.Limits{Connections: 7, Pending: 3, Bandwidth: 10 << 20}
	tests := map[string]struct {
		in   func(*decision.Candidate)
		want v1alpha1.TunnelStatus
	}{
		"all that is granted": {want: v1alpha1.TunnelStatus{
			ID: good.ID, Hostname: "c1.prod.tunnels.example.com", Names: []string{
				"c1.prod.tunnels.example.com",
				"api.example.com",
			},
			Served: &v1alpha1.ServedStatus{
				ClusterUID: "u1", APIServers: []string{"10.0.0.1:6443", "[fd00::2]:7443"},
				Limits: v1alpha1.ServedLimits{Connections: 7, PendingConnections: 3, Bandwidth: 10 << 20},
			},
		}},
		"a limit that cannot be kept": {
			in: func(c *decision.Candidate) { c.Limits = model.Limits{Connections: -1}; c.Others = nil },
			want: v1alpha1.TunnelStatus{
				ID: good.ID, Hostname: "c1.prod.tunnels.example.com", Names: []string{
					"c1.prod.tunnels.example.com",
					"api.example.com",
				},
				Served: &v1alpha1.ServedStatus{ClusterUID: "u1", APIServers: []string{"10.0.0.1:6443"}},
			},
		},
		"enrolment alone": {
			in: func(c *decision.Candidate) { c.Prepared = true; c.ExtraNames = nil; c.ClusterUID = "" },
			want: v1alpha1.TunnelStatus{
				ID: good.ID, Hostname: "c1.prod.tunnels.example.com", Names: []string{"c1.prod.tunnels.example.com"},
				Served: &v1alpha1.ServedStatus{EnrolmentOnly: true},
			},
		},
		"an apiserver that is no address": {
			in:   func(c *decision.Candidate) { c.APIServer.Host = "a b" },
			want: v1alpha1.TunnelStatus{ID: good.ID},
		},
		"a mode without a tunnel": {
			in:   func(c *decision.Candidate) { c.Unserved = true },
			want: v1alpha1.TunnelStatus{ID: good.ID},
		},
		"an id that another Tunnel has": {
			in: func(c *decision.Candidate) { c.ID = candidate("", "b", older).ID },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var names decision.Names
			names.Resolve(domain, holding(candidate("c2", "b", younger)))
			c := good
			c.Created = older.Add(time.Minute)
			if tc.in != nil {
				tc.in(&c)
			}
			// The previous record is replaced as a whole, and nothing else changes.
			status := v1alpha1.TunnelStatus{
				ID: "old", Hostname: "old", Names: []string{"old"}, Served: &v1alpha1.ServedStatus{APIServers: []string{"old:1"}},
				Tunnels: 3,
			}
			decision.Record(&status, names.Resolve(domain, c))
			tc.want.Tunnels = 3
			if diff := cmp.Diff(tc.want, status); diff != "" {
				t.Error(diff)
			}
		})
	}
}
