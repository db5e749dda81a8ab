package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// probingServers are Servers with fixed results of probes.
type probingServers struct {
	looks []collect.EdgeProbe
	err   error
}

// Observe implements Servers.
func (probingServers) Observe(context.Context, string, []string) (collect.Fleet, error) {
	return collect.Fleet{}, nil
}

// Look implements Servers.
func (l probingServers) ProbeAPIServers(context.Context, string) ([]collect.EdgeProbe, error) {
	return l.looks, l.err
}

// TestACurrentProbeOutranksAnEarlierReport proves that a fault is found before the edge reports it, and that an
// old report is marked as such.
func TestACurrentProbeOutranksAnEarlierReport(t *testing.T) {
	end := time.Now().Add(24 * time.Hour)
	well := &observed.APIServer{Address: "a:6443", Healthy: true, CertificateEnd: end}
	down := &observed.APIServer{
		Address: "a:6443", Reason: model.APIServerConnectionRefused, Message: "nothing listens there: connection refused",
	}
	unready := &observed.APIServer{
		Address: "a:6443", Reason: model.APIServerNotReady, Message: "it answers /readyz with status 500: etcd failed",
		CertificateEnd: end,
	}
	edge := func(node string, a *observed.APIServer) observed.Edge {
		return observed.Edge{Node: node, Connected: true, APIServer: a, Age: 90 * time.Second}
	}
	tests := map[string]struct {
		edges     []observed.Edge
		looks     probingServers
		want      Status
		says      string
		unreached bool
	}{
		"it has just gone down": {
			[]observed.Edge{edge("e1", well)},
			probingServers{looks: []collect.EdgeProbe{{Node: "e1", APIServer: down}}},
			Broken, "nothing listens there", true,
		},
		"it is there again": {
			[]observed.Edge{edge("e1", down)},
			probingServers{looks: []collect.EdgeProbe{{Node: "e1", APIServer: well}}},
			OK, "e1 reaches a:6443", false,
		},
		"it is there and not ready": {
			[]observed.Edge{edge("e1", well)},
			probingServers{looks: []collect.EdgeProbe{{Node: "e1", APIServer: unready}}},
			Broken, "status 500", false,
		},
		"one of two edges reaches it": {
			[]observed.Edge{edge("e1", well), edge("e2", well)},
			probingServers{looks: []collect.EdgeProbe{{Node: "e1", APIServer: down}, {Node: "e2", APIServer: well}}},
			Warning,
			"e2 reaches", false,
		},
		"the edge that looks outranks": {
			[]observed.Edge{edge("e1", well), edge("e2", well)},
			probingServers{looks: []collect.EdgeProbe{{Node: "e1", APIServer: down}, {Node: "e2", Problem: "too slow"}}},
			Broken,
			"e2 did not probe now (too slow): result reported 1m30s ago", false,
		},
		"an older edge does not look": {
			[]observed.Edge{edge("e1", well)},
			probingServers{looks: []collect.EdgeProbe{{Node: "e1", Problem: "does not know the question"}}},
			OK,
			"does not know the question): result reported 1m30s ago", false,
		},
		"no server answers": {
			[]observed.Edge{edge("e1", down)},
			probingServers{err: errors.New("all are away")},
			Broken, "all are away", false,
		},
		"it has gone to another server": {
			[]observed.Edge{edge("e1", well)},
			probingServers{},
			OK,
			"it is not connected to any xds-server that answered", false,
		},
		"an absent edge is not probed": {
			[]observed.Edge{{Node: "e1", APIServer: well}},
			probingServers{
				looks: []collect.EdgeProbe{{Node: "e1", APIServer: well}},
			},
			Skipped, "no connected edge has reported", false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tunnel := &v1alpha1.Tunnel{}
			tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeConnect
			tunnel.Status.Names = []string{"c1.test"}
			v := &visit{Checker: &Checker{Servers: tc.looks}, tunnel: tunnel, observed: &collect.Fleet{Edges: tc.edges}}
			v.defaults()
			f := checkAPIServer(t.Context(), v)
			if f.status != tc.want || !strings.Contains(f.detail, tc.says) || v.unreached != tc.unreached {
				t.Errorf("got %+v, unreached %t", f, v.unreached)
			}
		})
	}
}

// TestTheCertificateOfEachAPIServer: each edge may have an apiserver of its own, and clients reach any of them.
func TestTheCertificateOfEachAPIServer(t *testing.T) {
	well := observed.APIServer{
		Address: "a:6443", Healthy: true, CertificateEnd: noon.Add(24 * time.Hour), CertificateNames: []string{"c1.test"},
	}
	ends, other := well, well
	ends.Address, ends.CertificateEnd = "b:6443", noon.Add(time.Minute)
	other.Address, other.CertificateNames = "c:6443", []string{"kubernetes"}
	for name, tc := range map[string]struct {
		all  []*observed.APIServer
		want Status
		says string
	}{
		"both are right":                  {[]*observed.APIServer{&well, &well}, OK, "e1, e2 reaches a:6443"},
		"the second one ends soon":        {[]*observed.APIServer{&well, &ends}, Warning, "b:6443 expires"},
		"the second one lacks the name":   {[]*observed.APIServer{&well, &other}, Broken, "c:6443 lacks the name c1.test"},
		"the worst fault is that of both": {[]*observed.APIServer{&ends, &other}, Broken, "c:6443 lacks the name c1.test"},
	} {
		var edges []observed.Edge
		for i, a := range tc.all {
			edges = append(edges, observed.Edge{Node: fmt.Sprintf("e%d", i+1), Connected: true, APIServer: a})
		}
		v := visitOf(&collect.Fleet{})
		v.config = &rest.Config{Host: "https://c1.test:6443"}
		if f := v.judgeAPIServer(edges); f.status != tc.want || !strings.Contains(f.detail, tc.says) {
			t.Errorf("%s: got %+v", name, f)
		}
	}
}

// TestAnEdgeOfASilentServerMayReachTheAPIServer: requests are sent although no edge that reports reaches it.
func TestAnEdgeOfASilentServerMayReachTheAPIServer(t *testing.T) {
	down := &observed.APIServer{Address: "a:6443", Reason: model.APIServerConnectionRefused}
	for _, servers := range [][]collect.Server{silence(), silence()[:1]} {
		v := visitOf(&collect.Fleet{Servers: servers, Edges: []observed.Edge{{Node: "e1", Connected: true}}})
		v.Servers = probingServers{looks: []collect.EdgeProbe{{Node: "e1", APIServer: down}}}
		f := checkAPIServer(t.Context(), v)
		if f.status != Broken || v.unreached != (len(servers) == 1) {
			t.Errorf("%d servers: got %+v, unreached %t", len(servers), f, v.unreached)
		}
	}
}
