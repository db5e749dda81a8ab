package operations

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// TestDocumentedRecoveryRestoresService destroys one part after the other, and follows the document to restore it.
func TestDocumentedRecoveryRestoresService(t *testing.T) {
	t.Parallel()
	o := newOperations(t, newest())
	for _, one := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"edge", o.edgeLost},
		{"backup", o.backup},
		{"snapshot", o.snapshot},
		{"management", o.managementLost},
		{"gateways", o.gatewaysLost},
		{"servers", o.serversLost},
		{"CA", o.caLost},
		{"key", o.caStolen},
		{"removal", o.removed},
	} {
		if !t.Run(one.name, one.run) {
			return
		}
	}
	t.Run("logs", func(t *testing.T) { o.Logs(t) })
}

// backup takes the backup from which everything is restored, after a tunnel has ended.
func (o *operations) backup(t *testing.T) {
	o.endTunnel(t)
	that(t, "the documented commands write a backup that other users cannot read", func(t *testing.T) {
		o.run(t, block(t, "Backup", 0))
		for _, file := range []string{"fairlead-ca.yaml", "fairlead-ended-tunnels.yaml", "clusters"} {
			o.kept(t, file)
		}
		o.within(t, o.healthy)
	})
}

// managementLost deletes the management cluster, and restores everything from the backup.
func (o *operations) managementLost(t *testing.T) {
	before := o.serial(t)
	that(t, "edges keep running and retry without the management cluster", func(t *testing.T) {
		o.kubelet.without(func() {
			must(t, o.LoseManagement())
			must(t, o.NewManagement(t.Context()))
		})
	})
	that(
		t,
		"the documented commands restore the CA in an empty management cluster before Fairlead is installed",
		func(t *testing.T) {
			o.run(t, block(t, "The management cluster is lost", 0))
		},
	)
	that(
		t,
		"kubectl apply -k . installs Fairlead with the restored CA (the test starts the Pods)",
		func(t *testing.T) {
			o.run(t, "kubectl apply -k .")
			o.run(t, "kubectl -n "+lab.InstallationNamespace+" rollout status statefulset/gateway --timeout=3m")
			if after := o.serial(t); after != before {
				t.Errorf("the CA was %s, now it is %s", before, after)
			}
			if out := o.run(t, command(t, "The management cluster is lost", "fairlead ca status")); !strings.Contains(
				out, before,
			) {
				t.Errorf("it does not show %s: %s", before, out)
			}
		},
	)
	that(
		t,
		"every edge reconnects with its identity after clusterctl restores the Clusters",
		func(t *testing.T) {
			o.run(t, block(t, "The management cluster is lost", 1))
			for _, c := range o.clusters {
				must(t, c.SetProvisioned(t.Context())) // normally its provider does this
			}
			measured("management_back_s", o.within(t, o.healthy).Seconds())
			o.edgesUnchanged(t)
		},
	)
	that(
		t, "a revoked edge and an edge of an ended tunnel cannot reconnect",
		func(t *testing.T) { o.within(t, o.stillRejected) },
	)
	that(t, "no annotation contains the CA's key", func(t *testing.T) {
		secret := o.caSecret(v1alpha1.CASecretName)
		must(t, o.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
		if _, ok := secret.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
			t.Error("there is one")
		}
	})
	that(t, "fairlead check finds no problem after the restore", func(t *testing.T) {
		o.run(t, command(t, "The management cluster is lost", "fairlead check"))
	})
}

// snapshot deletes the management cluster, and restores everything from a snapshot of etcd.
func (o *operations) snapshot(t *testing.T) {
	late := o.enrol(t, o.clusters[0])
	o.within(t, o.healthy)
	o.edges = o.edges[:len(o.edges)-1]
	stolen := stolenEdge{late, world.Steal(t, late.Agent)}
	revoke := strings.ReplaceAll(
		command(t, "The management cluster is lost", "fairlead edge revoke"), "NODE",
		stolen.stolen.Subject.Node+" "+o.Inspection(),
	)
	folder := t.TempDir()
	that(
		t,
		"edges reconnect without help after etcd is restored from a snapshot of its disk (the test "+
			"starts the Pods)",
		func(t *testing.T) {
			must(t, o.SaveEtcd(folder))
			o.run(t, revoke)
			must(t, o.refused(t.Context(), stolen))
			world.StopEdge(t, late.Agent)
			o.kubelet.without(func() {
				must(t, o.LoseManagement())
				must(t, o.RestoreEtcd(t.Context(), folder))
			})
			measured("snapshot_back_s", o.within(t, o.healthy).Seconds())
			o.edgesUnchanged(t)
		},
	)
	that(t, "a revocation after the snapshot is lost, and works when repeated", func(t *testing.T) {
		if err := o.Outsider(stolen.stolen).Open(t.Context(), "gateway-0", claimOf(stolen.stolen)); err != nil {
			t.Errorf("%v: the document says more than is so", err)
		}
		o.run(t, revoke)
		o.within(t, o.stillRejected)
		must(t, o.refused(t.Context(), stolen))
	})
	if t.Failed() {
		return
	}
	that(t, "the documented commands replace the backup", func(t *testing.T) {
		must(t, os.RemoveAll(o.folder+"/clusters"))
		o.run(t, block(t, "Backup", 0))
	})
	o.revoked = append(o.revoked, stolen)
}
