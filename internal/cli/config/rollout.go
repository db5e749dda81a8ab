package config

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// rolloutState is the progress of a change of all nodes, with the short names of profiles.
type rolloutState struct {
	Phase   string     `json:"phase"` // none, first, rest or stopped
	Current string     `json:"current"`
	Next    string     `json:"next,omitempty"`
	AtNext  int        `json:"atNext"` // connected nodes that have accepted all of the next profile
	Nodes   int        `json:"nodes"`  // connected nodes
	Since   *time.Time `json:"since,omitempty"`
	Reason  string     `json:"reason,omitempty"` // why it has stopped or ended
	First   []string   `json:"first,omitempty"`  // node names of the first wave
}

// readRollout reads the record of rollouts; nil: there is none, or the user may not read it.
func readRollout(ctx context.Context, from client.Reader, namespace string) (*rollout.Record, error) {
	var object corev1.ConfigMap
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.RolloutConfigMapName}, &object)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading how far a rollout is: %w", err)
	}
	return rollout.ParseRecord(object.Data)
}

// stateOf combines a record with the profiles that the nodes are served; nil: there is no record.
func stateOf(record *rollout.Record, nodes []collect.Node) *rolloutState {
	if record == nil {
		return nil
	}
	s := &rolloutState{
		Phase: rollout.Phases[record.Phase], Current: record.Current.ID(), Next: record.Next.ID(),
		Since: pointer(record.Since), Reason: record.Reason,
	}
	for _, m := range record.Nodes {
		s.First = append(s.First, m.Name)
	}
	seen := map[string]bool{}
	for i := range nodes {
		if n := &nodes[i]; !seen[n.Name] {
			seen[n.Name] = true
			s.Nodes++
			if s.Next != "" && n.Profile == s.Next && allSynced(n) {
				s.AtNext++
			}
		}
	}
	return s
}

func allSynced(n *collect.Node) bool {
	return !slices.ContainsFunc(n.Resources, func(r collect.Resource) bool { return r.Status != collect.Synced })
}

// line returns a rollout as one line, which is printed above the table.
func (s *rolloutState) line(now time.Time) output.Line {
	since := ""
	if s.Since != nil {
		since = " for " + output.Age(*s.Since, now)
	}
	at := strconv.Itoa(s.AtNext) + " of " + strconv.Itoa(s.Nodes) + " nodes"
	title := "rollout of profile " + s.Next
	switch s.Phase {
	case rollout.Phases[rollout.PhaseFirst]:
		title += ": first wave" + since
		return output.Line{output.Styled(output.StyleWarning, title), output.Plain(", " + at + ", others run " + s.Current)}
	case rollout.Phases[rollout.PhaseRest]:
		return output.Line{output.Styled(output.StyleWarning, title+": all nodes"+since), output.Plain(", " + at)}
	case rollout.Phases[rollout.PhaseStopped]:
		why := cutLine(cmp.Or(s.Reason, "-"), 300)
		return output.Line{
			output.Styled(output.StyleBad, title+" stopped"+since),
			output.Plain(", all nodes get " + s.Current + ": " + why),
		}
	}
	return output.Line{output.Plain("profile " + s.Current)}
}
