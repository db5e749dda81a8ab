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
	// lookTime is longer than a server waits for edges.
	probeTimeout = 6 * time.Second
	// maxLooks is how many looks one Servers asks for at a time: half of the calls that a server takes of it, for the others are quick.
	maxProbes = maxStreams / 2
)

// EdgeLook is what an edge sees of its apiserver now.
type EdgeProbe struct {
	Node      string              // node name
	APIServer *observed.APIServer // nil: see Problem
	Problem   string
}

// Look has the edges of a tunnel look at their apiserver now, and returns what each saw, in the order of their names; those that report to no
// server that answered are not in it. The error is that of a call that no server answered. More than a few callers wait for each other.
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

// mergeLooks joins the answers of the xds-servers, nil where there is none, in order of nodes. An edge that has just gone
// from one server to another may be in two: the one that has an observation counts.
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
