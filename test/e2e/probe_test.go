package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// probes holds Cluster API's own view of the workload clusters.
type probes struct {
	members   []*member
	connected map[*member]metav1.Condition // when they first became True
}

// watchProbes reports the machines as provisioned to Cluster API, and waits until it reaches them.
func (w *world) watchProbes(t *testing.T) *probes {
	t.Helper()
	p := &probes{members: w.members(), connected: map[*member]metav1.Condition{}}
	for _, m := range p.members {
		must(t, m.SetProvisioned(t.Context()))
	}
	for _, m := range p.members {
		promise.That(t, "Cluster API reaches "+m.Name+" through its reverse tunnel", func(t *testing.T) {
			eventually(t, m.RemoteConnectionProbe)
			promise.Measured("remote_connection_probe_s", time.Since(m.Created).Seconds())
			condition, err := probeOf(t.Context(), m)
			must(t, err)
			p.connected[m] = condition
		})
	}
	return p
}

// early creates a Cluster whose machines count as provisioned before it has an edge. Cluster API's first attempt fails,
// and it waits 30 s before the next one.
func (w *world) early(t *testing.T) *member {
	t.Helper()
	m := &member{Cluster: w.bareCluster(t, lab.ClusterSpec{Name: "early"})}
	must(t, m.SetProvisioned(t.Context()))
	eventually(t, func(context.Context) error { return proc.HasText(w.LogFile("capi-core"), `"Connect failed"`) })
	bootstrap, err := m.Bootstrap(t.Context())
	must(t, err)
	m.edge, err = w.StartEdge("edge-early", bootstrap)
	must(t, err)
	return m
}

// reachedLate proves that Cluster API reaches the Cluster of early in the end.
func reachedLate(t *testing.T, m *member) {
	promise.That(t, "Cluster API reaches a Cluster whose reverse tunnel opens after the first probe", func(t *testing.T) {
		eventually(t, m.RemoteConnectionProbe)
		condition, err := probeOf(t.Context(), m)
		must(t, err)
		promise.Measured(
			"remote_connection_probe_after_a_failed_try_s", condition.LastTransitionTime.Sub(m.Created).Seconds(),
		)
	})
}

func probeOf(ctx context.Context, m *member) (metav1.Condition, error) {
	cluster, err := m.Get(ctx)
	if err != nil {
		return metav1.Condition{}, err
	}
	condition := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1.ClusterRemoteConnectionProbeCondition)
	if condition == nil {
		return metav1.Condition{}, errors.New("cluster has no condition RemoteConnectionProbe")
	}
	return *condition, nil
}

// check proves that the condition has been True without interruption: any other status in between would have changed
// the transition time. The last failure must be long enough ago that Cluster API would have noticed it. Cluster API has
// then reached the Cluster of early too.
func (p *probes) check(t *testing.T, early *member, broken time.Time) {
	reachedLate(t, early)
	for _, m := range p.members {
		promise.That(t, fmt.Sprintf("RemoteConnectionProbe of %s is True throughout the run", m.Name), func(t *testing.T) {
			must(t, p.waitPastGrace(t.Context(), m, broken))
		})
	}
}

func (p *probes) stayed(ctx context.Context, m *member) error {
	now, err := probeOf(ctx, m)
	if err != nil {
		return err
	}
	was := p.connected[m]
	if now.Status != metav1.ConditionTrue || !now.LastTransitionTime.Equal(&was.LastTransitionTime) {
		return fmt.Errorf(
			"condition is %s since %s (%s), was True since %s", now.Status, now.LastTransitionTime, now.Message,
			was.LastTransitionTime,
		)
	}
	return nil
}

// probeGrace is how long Cluster API keeps the condition True after its last successful probe.
const probeGrace = 50 * time.Second

// waitPastGrace waits until Cluster API would have reported a connection that broke at a given time.
func (p *probes) waitPastGrace(ctx context.Context, m *member, broken time.Time) error {
	if err := p.stayed(ctx, m); err != nil {
		return err
	}
	err := proc.Wait(ctx, probeGrace+patience, func(context.Context) error {
		if left := probeGrace - time.Since(broken); left > 0 {
			return fmt.Errorf("%s left", left)
		}
		return nil
	})
	return errors.Join(err, p.stayed(ctx, m))
}
