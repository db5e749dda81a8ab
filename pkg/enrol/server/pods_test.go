package server_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// podNode is the node name of the one Pod whose token the management cluster accepts.
const podNode, validPodToken = "edge-of-a-pod", "a.valid.token"

func (m *management) PodToken(token string) (enrol.PodGrant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verified++
	if token != validPodToken {
		return enrol.PodGrant{}, fmt.Errorf("%w: %w", enrol.ErrDeniedToken, podtoken.ErrInvalid)
	}
	return enrol.PodGrant{Grant: enrol.Grant{Tunnel: tunnel, ID: id}, Node: podNode}, nil
}

// TestAPodEnrolsByItsServiceAccountToken: the token decides tunnel and node name, and reaches the signer, which
// verifies it again.
func TestAPodEnrolsByItsServiceAccountToken(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	for range 2 { // with another key each time
		identity, _, err := client.EnrolPod(t.Context(), validPodToken, "pod-0")
		if err != nil {
			t.Fatal(err)
		}
		if want := (model.Subject{Role: model.RoleEdge, Node: podNode, ID: id}); subjectOf(t, identity) != want {
			t.Errorf("enrolled as %+v, want %+v", subjectOf(t, identity), want)
		}
	}
	if r := m.request; r.PodToken != validPodToken || r.TokenHash != "" || r.Host != "pod-0" || r.Tunnel != tunnel {
		t.Errorf("requested %+v", r)
	}
}

func TestTokensOfPodsThatAreRejected(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	if _, _, err := client.EnrolPod(t.Context(), "another.valid.token", ""); !errors.Is(err, certs.ErrRefused) {
		t.Errorf("another token: %v", err)
	}
	service := enrolv1.NewEnrolmentClient(connect(t, m, client))
	for name, request := range map[string]*enrolv1.EnrolEdgeRequest{
		"two credentials": {Token: m.edge, ServiceAccountToken: validPodToken},
		"oversized":       {ServiceAccountToken: "a." + strings.Repeat("b", podtoken.MaxToken) + ".c"},
		"not a JWT":       {ServiceAccountToken: "token"},
	} {
		before := m.verified
		if _, err := service.EnrolEdge(t.Context(), request); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
		if m.verified != before {
			t.Errorf("%s: it was verified", name)
		}
	}
	if _, err := service.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{
		ServiceAccountToken: validPodToken, Csr: []byte("garbage"),
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a signing request that is none: %v", err)
	}
}

// TestTokensOfPodsAreNotVerifiedWithoutLimit, because any host can send them.
func TestTokensOfPodsAreNotVerifiedWithoutLimit(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	service := enrolv1.NewEnrolmentClient(connect(t, m, client))
	for range 200 {
		_, _ = service.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{ServiceAccountToken: "a.b.c"})
	}
	if m.verified > 100 {
		t.Errorf("%d of 200 tokens of one address were verified", m.verified)
	}
}
