package sight

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

// syncRow is a row of the output of `fairlead config sync`.
type syncRow struct{ Node, Role, Cluster, Type, Status, Message string }

// sync returns the output of `fairlead config sync`, and its exit code.
func (s *sight) sync(ctx context.Context) ([]syncRow, int, error) {
	out, code, err := s.output(ctx, "config", "sync", "-o", "json", s.Inspection())
	if err != nil {
		return nil, 0, err
	}
	var got struct{ Nodes []syncRow }
	if err := json.Unmarshal(out, &got); err != nil {
		return nil, 0, fmt.Errorf("reading what config sync says: %w: %s", err, out)
	}
	return got.Nodes, code, nil
}

// synced returns nil if every Envoy has the configuration that was sent to it.
func (s *sight) synced(ctx context.Context) error {
	rows, code, err := s.sync(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(rows, func(r syncRow) bool { return r.Status != "SYNCED" }); i >= 0 || code != 0 {
		return fmt.Errorf("exit code %d, the first is %+v", code, rows[max(i, 0)])
	}
	return nil
}

// unanswered are the states of a node whose agent is stuck: its stream ends after a while.
var unanswered = map[string]bool{"STALE": true, "DISCONNECTED": true}

// proveConfig checks the commands that show the configuration of the Envoys of a room and of the gateways.
func (r *room) proveConfig(t *testing.T) {
	s := r.world
	that(t, "config sync shows that every gateway and edge runs its current configuration", func(t *testing.T) {
		must(t, proc.Wait(t.Context(), faults.CureTime, s.synced))
		rows, _, err := s.sync(t.Context())
		must(t, err)
		for _, want := range []string{"gateway cds", "gateway lds", "edge cds", "edge lds"} {
			if !slices.ContainsFunc(rows, func(row syncRow) bool { return row.Role+" "+row.Type == want }) {
				t.Errorf("there is no %s in %+v", want, rows)
			}
		}
		for _, row := range rows {
			if row.Type == "cds" {
				out, code, err := s.output(t.Context(), "config", "dump", row.Node, "--diff", s.Inspection())
				if err != nil || code != 0 || !strings.Contains(string(out), "run as published") {
					t.Errorf("%s: exit code %d, %v\n%s", row.Node, code, err, out)
				}
			}
		}
	})
	that(t, "config why traces a hostname from its objects to every gateway", func(t *testing.T) {
		must(t, proc.Wait(t.Context(), faults.CureTime, func(ctx context.Context) error {
			out, code, err := s.output(ctx, "config", "why", world.HostnameIn(r.Namespace, r.Name), s.Inspection())
			if err == nil &&
				(code != 0 || !strings.Contains(string(out), "every gateway routes this name to "+r.Namespace+"/"+r.Name)) {
				err = fmt.Errorf("exit code %d\n%s", code, out)
			}
			return err
		}))
	})
	that(t, "config sync names the Envoy that receives no changes", func(t *testing.T) {
		g := s.Gateways[0]
		g.Hold() // its Envoy continues
		must(t, proc.Wait(t.Context(), faults.NameTime, func(ctx context.Context) error {
			rows, code, err := s.sync(ctx)
			if err == nil && (code != 1 || len(rows) == 0 || rows[0].Node != "gateway-0" || !unanswered[rows[0].Status]) {
				err = fmt.Errorf("exit code %d, %+v", code, rows)
			}
			return err
		}))
		g.Resume()
		must(t, proc.Wait(t.Context(), faults.CureTime, s.synced))
	})
}
