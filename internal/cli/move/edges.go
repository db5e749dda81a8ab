package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/edge"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
)

// connectedEdges are those that carry a tunnel: what counts in a move. One that is away is told when it comes back, by hand.
func connectedEdges(t *v1alpha1.Tunnel) []v1alpha1.EdgeStatus {
	var edges []v1alpha1.EdgeStatus
	for i := range t.Status.Edges {
		if e := &t.Status.Edges[i]; e.RevokedAt == nil && len(e.Gateways) > 0 && !slices.Contains(t.Spec.RevokedEdges, edge.NodeOf(e)) {
			edges = append(edges, *e)
		}
	}
	return edges
}

// enrolledEdges are those that hold a certificate.
func enrolledEdges(t *v1alpha1.Tunnel, now time.Time) []v1alpha1.EdgeStatus {
	var edges []v1alpha1.EdgeStatus
	for i := range t.Status.Edges {
		if e := &t.Status.Edges[i]; e.RevokedAt == nil && now.Before(e.CertificateNotAfter.Time) && !slices.Contains(t.Spec.RevokedEdges, edge.NodeOf(e)) {
			edges = append(edges, *e)
		}
	}
	return edges
}

// unmatched are the edges that have no counterpart among others. A machine has another node name at each installation, so hosts
// tell: each counterpart counts once, and one whose host nobody knows stands for any.
func unmatched(edges, others []v1alpha1.EdgeStatus) []v1alpha1.EdgeStatus {
	free := slices.Clone(others)
	take := func(host string) bool {
		i := slices.IndexFunc(free, func(e v1alpha1.EdgeStatus) bool { return e.Host == host })
		if i >= 0 {
			free = slices.Delete(free, i, i+1)
		}
		return i >= 0
	}
	left := slices.DeleteFunc(slices.Clone(edges), func(e v1alpha1.EdgeStatus) bool { return e.Host != "" && take(e.Host) })
	return slices.DeleteFunc(left, func(e v1alpha1.EdgeStatus) bool {
		if e.Host == "" && len(free) > 0 {
			free = free[1:]
			return true
		}
		return take("")
	})
}

// edges are those that are connected here, and which of them are not enrolled there.
func (m *move) edges(ctx context.Context) (connected, missing []v1alpha1.EdgeStatus, err error) {
	var here, there v1alpha1.Tunnel
	if err := m.from.Get(ctx, m.key, &here); err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel: %w", err)
	}
	if err := m.to.Get(ctx, m.target, &there); err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel in the target: %w", err)
	}
	connected = connectedEdges(&here)
	return connected, unmatched(connected, enrolledEdges(&there, time.Now())), nil
}

// missing are the edges that are connected here and not enrolled there.
func (m *move) missing(ctx context.Context) ([]v1alpha1.EdgeStatus, error) {
	_, missing, err := m.edges(ctx)
	return missing, err
}

// names says which edges, for people.
func names(edges []v1alpha1.EdgeStatus) string {
	var all []string
	for i := range edges {
		all = append(all, fmt.Sprintf("%s (host %s)", edge.NodeOf(&edges[i]), output.OrDash(edges[i].Host)))
	}
	return strings.Join(all, ", ")
}

// waitEnrolled waits until every edge that is connected here is enrolled there.
func (m *move) waitEnrolled(ctx context.Context) error {
	again := time.NewTicker(management.LookInterval)
	defer again.Stop()
	said := ""
	for {
		missing, err := m.missing(ctx)
		switch {
		case err == nil && len(missing) == 0:
			m.say("ready: every edge that is connected here is enrolled in the target")
			return nil
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return err
		case err == nil && names(missing) != said:
			said = names(missing)
			m.say("waiting for %s", said)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not enrolled in the target, so these edges would lose their tunnel in a move: %s: %w", said, errors.Join(ctx.Err(), err))
		case <-again.C:
		}
	}
}
