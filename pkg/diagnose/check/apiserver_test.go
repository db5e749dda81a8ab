package check

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// lookers are Servers whose edges look, or do not.
type lookers struct {
	looks []EdgeLook
	err   error
}

// Sight implements Servers.
func (lookers) Sight(context.Context, string, []string) (Sight, error) { return Sight{}, nil }

// Look implements Servers.
func (l lookers) Look(context.Context, string) ([]EdgeLook, error) { return l.looks, l.err }

// TestWhatAnEdgeSeesNowOutranksWhatItHasReported proves that a fault is known before the edge reports it, and that an old report is said to be one.
func TestWhatAnEdgeSeesNowOutranksWhatItHasReported(t *testing.T) {
	end := time.Now().Add(24 * time.Hour)
	well := &APIServerSight{Address: "a:6443", Healthy: true, CertificateEnd: end}
	down := &APIServerSight{Address: "a:6443", Message: "nothing listens there: connection refused"}
	unready := &APIServerSight{Address: "a:6443", Message: "it answers /readyz with status 500: etcd failed", CertificateEnd: end}
	edge := func(node string, a *APIServerSight) EdgeSight {
		return EdgeSight{Node: node, Connected: true, APIServer: a, Age: 90 * time.Second}
	}
	tests := map[string]struct {
		edges     []EdgeSight
		looks     lookers
		want      Status
		says      string
		unreached bool
	}{
		"it has just gone down":             {[]EdgeSight{edge("e1", well)}, lookers{looks: []EdgeLook{{Node: "e1", APIServer: down}}}, Broken, "nothing listens there", true},
		"it is there again":                 {[]EdgeSight{edge("e1", down)}, lookers{looks: []EdgeLook{{Node: "e1", APIServer: well}}}, OK, "e1 reaches a:6443", false},
		"it is there and not ready":         {[]EdgeSight{edge("e1", well)}, lookers{looks: []EdgeLook{{Node: "e1", APIServer: unready}}}, Broken, "status 500", false},
		"one of two edges reaches it":       {[]EdgeSight{edge("e1", well), edge("e2", well)}, lookers{looks: []EdgeLook{{Node: "e1", APIServer: down}, {Node: "e2", APIServer: well}}}, Warning, "e2 reaches", false},
		"the edge that looks outranks":      {[]EdgeSight{edge("e1", well), edge("e2", well)}, lookers{looks: []EdgeLook{{Node: "e1", APIServer: down}, {Node: "e2", Problem: "too slow"}}}, Broken, "e2 has not looked now (too slow): that is as it has reported 1m30s ago", false},
		"an older edge does not look":       {[]EdgeSight{edge("e1", well)}, lookers{looks: []EdgeLook{{Node: "e1", Problem: "does not know the question"}}}, OK, "does not know the question): that is as it has reported 1m30s ago", false},
		"no server can be asked":            {[]EdgeSight{edge("e1", down)}, lookers{err: errors.New("all are away")}, Broken, "all are away", false},
		"it has gone to another server":     {[]EdgeSight{edge("e1", well)}, lookers{}, OK, "no xds-server that answers has it now", false},
		"an edge that is away is not asked": {[]EdgeSight{{Node: "e1", APIServer: well}}, lookers{looks: []EdgeLook{{Node: "e1", APIServer: well}}}, Skipped, "no edge is connected", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tunnel := &v1alpha1.Tunnel{}
			tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeConnect
			tunnel.Status.Names = []string{"c1.test"}
			v := &visit{Checker: &Checker{Servers: tc.looks}, tunnel: tunnel, sight: &Sight{Edges: tc.edges}}
			v.defaults()
			f := lookAPIServer(t.Context(), v)
			if f.status != tc.want || !strings.Contains(f.detail, tc.says) || v.unreached != tc.unreached {
				t.Errorf("got %+v, unreached %t", f, v.unreached)
			}
		})
	}
}
