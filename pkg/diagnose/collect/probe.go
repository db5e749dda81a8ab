package collect

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
	"github.com/fairlead/fairlead/pkg/observed"
)

const (
	// probeTimeout exceeds the time that a server waits for edges.
	probeTimeout = 6 * time.Second
	// maxProbes bounds the concurrent probes of one Servers: half of the calls that a server permits it, because other
	// calls are short.
	maxProbes = maxStreams / 2
)

// EdgeProbe is an edge's observation of its apiserver now.
type EdgeProbe struct {
	Node      string              // node name
	APIServer *observed.APIServer // nil: see Problem
	Problem   string
}

// ProbeAPIServers makes the edges of a tunnel probe their apiserver now, and returns the results sorted by name. Edges
// that report to no server that answered are missing. The error means that no server answered. At most maxProbes
// callers run concurrently.
func (s *Servers) ProbeAPIServers(ctx context.Context, id string) ([]EdgeProbe, error) {
	select {
	case s.probing <- struct{}{}:
		defer func() { <-s.probing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answers := make([]*inspectv1.LookAnswer, len(s.all))
	errs := s.each(ctx, func(ctx context.Context, i int, c *connection) (err error) {
		answers[i], err = inspectv1.NewInspectClient(c.conn).Look(ctx, &inspectv1.LookRequest{TunnelId: id})
		return err
	})
	return mergeProbes(answers), answered(errs)
}

// mergeProbes joins the answers of the xds-servers, nil if there is none, in order of nodes. An edge that has just
// moved between servers may be in two answers: the one with an observation counts.
func mergeProbes(answers []*inspectv1.LookAnswer) []EdgeProbe {
	looks := map[string]EdgeProbe{}
	for _, answer := range answers {
		for _, e := range answer.GetEdges() {
			one := EdgeProbe{Node: e.GetNode(), APIServer: observed.APIServerOf(e.GetApiServer()), Problem: e.GetError()}
			if looks[one.Node].APIServer == nil {
				looks[one.Node] = one
			}
		}
	}
	return slices.SortedFunc(maps.Values(looks), func(a, b EdgeProbe) int { return strings.Compare(a.Node, b.Node) })
}
