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
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/observed"
)

// enrolledEdges are those that hold a certificate.
func enrolledEdges(t *v1alpha1.Tunnel, now time.Time) []observed.Edge {
	return slices.DeleteFunc(observed.Recorded(t, now), func(e observed.Edge) bool { return !e.HoldsCertificate(now) })
}

// unmatched are the edges that have no counterpart among others. A machine has another node name at each installation,
// so hosts tell: each counterpart counts once, and one whose host nobody knows stands for any.
func unmatched(edges, others []observed.Edge) []observed.Edge {
	free := slices.Clone(others)
	take := func(host string) bool {
		i := slices.IndexFunc(free, func(e observed.Edge) bool { return e.Host == host })
		if i >= 0 {
			free = slices.Delete(free, i, i+1)
		}
		return i >= 0
	}
	left := slices.DeleteFunc(slices.Clone(edges), func(e observed.Edge) bool { return e.Host != "" && take(e.Host) })
	return slices.DeleteFunc(left, func(e observed.Edge) bool {
		if e.Host == "" && len(free) > 0 {
			free = free[1:]
			return true
		}
		return take("")
	})
}

// awayTime is for how long an edge that is away is still waited for: a machine restarts within it.
const awayTime = 3 * time.Minute

// carriers are the edges of a Tunnel that carry a tunnel or have done so in the last minutes of this command: one that
// is away for a moment, such as for its restart, would lose its tunnel in a move, too, unless it was revoked or its
// certificate has ended. One that has been away since before gets the new address by hand when it comes back.
func (m *move) carriers(t *v1alpha1.Tunnel, now time.Time) []observed.Edge {
	return slices.DeleteFunc(observed.Recorded(t, now), func(e observed.Edge) bool {
		key := t.Name + "/" + e.Node
		if e.HasTunnel() {
			m.seen[key] = now
		}
		return !e.HasTunnel() && (now.Sub(m.seen[key]) >= awayTime || !e.HoldsCertificate(now))
	})
}

// edges are those that carry a tunnel here, and which of them are not enrolled there.
func (m *move) edges(ctx context.Context) (connected, missing []observed.Edge, err error) {
	var here, there v1alpha1.Tunnel
	if err := m.from.Get(ctx, m.key, &here); err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel: %w", err)
	}
	if err := m.to.Get(ctx, m.target, &there); err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel in the target: %w", err)
	}
	connected = m.carriers(&here, time.Now())
	return connected, unmatched(connected, enrolledEdges(&there, time.Now())), nil
}

// missing are the edges that are connected here and not enrolled there.
func (m *move) missing(ctx context.Context) ([]observed.Edge, error) {
	_, missing, err := m.edges(ctx)
	return missing, err
}

// names says which edges, for people.
func names(edges []observed.Edge) string {
	var all []string
	for i := range edges {
		all = append(all, fmt.Sprintf("%s (host %s)", edges[i].Node, output.OrDash(edges[i].Host)))
	}
	return strings.Join(all, ", ")
}

// waitEnrolled waits until every edge that is connected here is enrolled there.
func (m *move) waitEnrolled(ctx context.Context) error {
	again := time.NewTicker(management.PollInterval)
	defer again.Stop()
	said := ""
	for {
		missing, err := m.missing(ctx)
		switch {
		case err == nil && len(missing) == 0:
			return nil
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return err
		case err == nil && names(missing) != said:
			said = names(missing)
			m.report("waiting for %s", said)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf(
				"not enrolled in the target, so these edges would lose their tunnel in a move: %s: %w", said,
				errors.Join(ctx.Err(), err),
			)
		case <-again.C:
		}
	}
}
