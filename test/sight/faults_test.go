package sight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/faults"
)

// fault is a fault that is injected into a room.
type fault = faults.Fault[*room]

// Check runs check about a Cluster of the room.
func (r *room) Check(ctx context.Context, cluster string) (faults.Answer, error) {
	return faults.Check(ctx, r.world.Lab, r.Namespace, cmp.Or(cluster, r.Name), r.flags...)
}

// Healthy returns a condition that is nil once check finds no problem of a Cluster and has tested every hop.
func (r *room) Healthy(cluster string) func(context.Context) error {
	return func(ctx context.Context) error {
		answer, err := r.Check(ctx, cluster)
		if err != nil {
			return err
		}
		if answer.Status != check.OK {
			return fmt.Errorf("check says %s", answer)
		}
		for _, h := range answer.Hops {
			if h.Status != check.OK {
				return fmt.Errorf("the hop %s is %s: %s", h.ID, h.Status, h.Detail)
			}
		}
		if len(answer.Hops) == 0 {
			return errors.New("check has tested no hop")
		}
		return nil
	}
}

// Show logs what an operator would see.
func (r *room) Show(t *testing.T, cluster string) {
	t.Helper()
	t.Logf("fairlead check says:\n%s",
		faults.Text(context.WithoutCancel(t.Context()), r.world.Lab, r.Namespace, cmp.Or(cluster, r.Name)))
}
