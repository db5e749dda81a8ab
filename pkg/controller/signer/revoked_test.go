package signer

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestTheObjectOfARevokedEdgeHasNoToken, independent of the status.
func TestTheObjectOfARevokedEdgeHasNoToken(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	tunnel.Spec.RevokedEdges, tunnel.Status.ID = []string{"edge-a"}, tunnel.Spec.ID
	for _, node := range []string{"edge-a", "edge-b"} {
		e := controllertest.Recorded(node, time.Now())
		e.TokenSHA256 = enrol.HashToken(node)
		tunnel.Status.Edges = append(tunnel.Status.Edges, e)
		tunnel.Status.Tokens = append(
			tunnel.Status.Tokens,
			v1alpha1.TokenStatus{SHA256: e.TokenSHA256, MaxUses: 9, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour))},
		)
	}
	api := controllertest.FakeAPI(t, cluster, tunnel)
	r := &Reconciler{Deps: reconciler.Deps{Config: controllertest.Config(), Client: api, Live: api, Now: time.Now}}
	for token, want := range map[string]string{"edge-a": ReasonRevoked, "edge-b": ""} {
		err := r.admitEdge(t.Context(), &request{
			subject:   model.Subject{Role: model.RoleEdge, Node: "edge-new", ID: tunnel.Spec.ID},
			tunnel:    model.Key{Namespace: "prod", Name: "c1"},
			tokenHash: enrol.HashToken(token), notAfter: time.Now().Add(time.Hour),
		})
		var no *refusal
		if errors.As(err, &no); (want == "") != (err == nil) || (no != nil && no.reason != want) {
			t.Errorf("by the token of %s: %v", token, err)
		}
	}
}
