package check

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/observed"
)

// TestAnEdgeWithoutAnAnswerProvesNoHandshake proves that an edge without tunnels is blamed only if it answers:
// its control channel stays open for a while after its network is gone.
func TestAnEdgeWithoutAnAnswerProvesNoHandshake(t *testing.T) {
	there := collect.EdgeProbe{Node: "e1", APIServer: &observed.APIServer{Address: "a:6443"}}
	mute := collect.EdgeProbe{Node: "e2", Problem: "its agent has not answered in time"}
	tests := map[string]struct {
		looks probingServers
		blind string
		want  Status
		says  string
	}{
		"one answers": {
			looks: probingServers{looks: []collect.EdgeProbe{there, mute}}, want: Broken,
			says: "is connected to the control channel, but has no tunnel",
		},
		"none answers": {
			looks: probingServers{looks: []collect.EdgeProbe{mute}}, want: Skipped,
			says: "e2 has an open control channel, but does not answer (its agent has not answered in time)",
		},
		"no server answers": {looks: probingServers{err: errors.New("all are away")}, want: Broken, says: "has no tunnel"},
		"no server is to be had": {
			looks: probingServers{looks: []collect.EdgeProbe{mute}}, blind: "they can't be reached",
			want: Skipped, says: "no connected edge has reported",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tunnel := &v1alpha1.Tunnel{}
			tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeConnect
			tunnel.Status.Names = []string{"c1.test"}
			observed := &collect.Fleet{Edges: []observed.Edge{{Node: "e1", Connected: true}, {Node: "e2", Connected: true}}}
			v := &visit{Checker: &Checker{Servers: tc.looks}, tunnel: tunnel, observed: observed, notObserved: tc.blind}
			v.defaults()
			v.cutOff = true
			f := checkHandshake(t.Context(), v)
			if f.status != tc.want || !strings.Contains(f.detail, tc.says) {
				t.Errorf("got %+v", f)
			}
		})
	}
}
