package operations

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/test/lab"
)

// TestDisasters loses one thing after the other, and does what the document says.
func TestDisasters(t *testing.T) {
	t.Parallel()
	o := newOperations(t, nil)
	for _, one := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"backup", o.backup}, {"management", o.managementLost}, {"CA", o.caLost}, {"key", o.caStolen},
	} {
		if !t.Run(one.name, one.run) {
			return
		}
	}
	t.Run("logs", func(t *testing.T) { o.Logs(t) })
}

// backup takes the backup from which everything is brought back.
func (o *operations) backup(t *testing.T) {
	that(t, "the commands of the document take a backup, which others can't read", func(t *testing.T) {
		o.run(t, block(t, "Backup", 0))
		for _, file := range []string{"fairlead-ca.yaml", "clusters"} {
			o.kept(t, file)
		}
		o.within(t, o.well)
	})
}

// managementLost loses the management cluster, and brings everything back from the backup.
func (o *operations) managementLost(t *testing.T) {
	before := o.serial(t)
	that(t, "without the management cluster edges wait, and nobody visits them", func(t *testing.T) {
		o.kubelet.without(func() {
			must(t, o.LoseManagement())
			must(t, o.NewManagement(t.Context()))
		})
	})
	that(t, "the commands of the document put the CA into an empty management cluster before Fairlead comes", func(t *testing.T) {
		o.run(t, block(t, "The management cluster is lost", 0))
	})
	that(t, "kubectl apply -k . brings Fairlead back (the test starts the Pods), with the CA that there was", func(t *testing.T) {
		o.run(t, "kubectl apply -k .")
		o.run(t, "kubectl -n "+lab.InstallationNamespace+" rollout status statefulset/gateway --timeout=3m")
		if after := o.serial(t); after != before {
			t.Errorf("the CA was %s, now it is %s", before, after)
		}
		if out := o.run(t, command(t, "The management cluster is lost", "fairlead ca status")); !strings.Contains(out, before) {
			t.Errorf("it does not show %s: %s", before, out)
		}
	})
	that(t, "clusterctl brings the Clusters, and every edge is back by itself: the same edge, without an enrolment", func(t *testing.T) {
		o.run(t, block(t, "The management cluster is lost", 1))
		for _, c := range o.clusters {
			must(t, c.SetProvisioned(t.Context())) // its provider does
		}
		measured("management_back_s", o.within(t, o.well).Seconds())
		o.unvisited(t)
	})
	that(t, "fairlead check finds nothing", func(t *testing.T) {
		o.run(t, command(t, "The management cluster is lost", "fairlead check"))
	})
}
