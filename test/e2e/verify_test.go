package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/promise"
)

// TestClusterAPIManagesClustersThroughTunnels proves that Cluster API manages workload clusters that it cannot dial,
// and continues to do so during failures and attacks.
func TestClusterAPIManagesClustersThroughTunnels(t *testing.T) {
	if installation == nil {
		t.Skip("there is no lab")
	}
	w := newWorld(t)
	connected := w.watchProbes(t)
	var early *member
	if !testing.Short() {
		early = w.early(t)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
		long bool // left out with -short
	}{
		{"networks", w.networks, false},
		{"from outside", w.outside, false},
		{"opting in", w.optingIn, false},
		{"enrolment", w.enrolment, false},
		{"kubeconfig", w.kubeconfigs, false},
		{"traffic", w.traffic, false},
		{"download", w.download, true},
		{"on the wire", w.wire, false},
		{"failure", w.failure, false},
		{"bad objects", w.badObjects, true},
		{"lifecycle of a Cluster", w.lifeOfACluster, true},
		{"attacks", w.attacks, true},
		{"Cluster API", func(t *testing.T) { connected.check(t, early, w.broken) }, true},
	} {
		if part.long && testing.Short() {
			continue
		}
		t.Run(part.name, part.run)
	}
	t.Run("logs", w.logs)
	w.measureMemory(t)
}

// measureMemory records the resident memory of each of Fairlead's processes, in MiB.
func (w *world) measureMemory(t *testing.T) {
	t.Helper()
	memory, err := w.Memory()
	must(t, err)
	for _, m := range memory {
		promise.Measured(fmt.Sprintf("rss_%s_mib", m.Name), float64(m.Bytes)/(1<<20))
	}
}

// calm returns how long something must be absent to count as permanently gone: a second in the short form.
func calm() time.Duration {
	if testing.Short() {
		return time.Second
	}
	return 3 * time.Second
}
