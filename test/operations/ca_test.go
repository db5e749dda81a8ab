package operations

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

const (
	lostCA   = "The CA is lost"
	stolenCA = "The key of the CA is stolen"
)

// caLost deletes the Secrets of the CA, one after the other and then both, and follows the table of the document.
func (o *operations) caLost(t *testing.T) {
	before := o.serial(t)
	that(t, "the controller recreates the Secret fairlead-ca with the same CA within 10 s", func(t *testing.T) {
		must(t, o.Management.Client.Delete(t.Context(), o.caSecret(v1alpha1.CASecretName)))
		took := o.within(t, o.hasCA(v1alpha1.CASecretName))
		measured("ca_secret_back_s", took.Seconds())
		if took > 10*time.Second+slack {
			t.Errorf("it took %s", took)
		}
	})
	that(t, "the controller recreates fairlead-ca-state from fairlead-ca, and all tunnels stay open", func(t *testing.T) {
		must(t, o.Management.Client.Delete(t.Context(), o.caSecret(v1alpha1.CAStateSecretName)))
		o.within(t, o.hasCA(v1alpha1.CAStateSecretName))
		o.caUnchanged(t, before)
	})
	that(
		t,
		"the controller reports a damaged fairlead-ca-state, and deleting it repairs the installation",
		func(t *testing.T) {
			damage := client.RawPatch(types.MergePatchType, []byte(`{"data":{"state.json":"bm90aGluZw=="}}`))
			must(t, o.Management.Client.Patch(t.Context(), o.caSecret(v1alpha1.CAStateSecretName), damage))
			o.within(t, o.anyLogs("controller", "restore it from a backup, or delete it"))
			must(t, o.healthy(t.Context()))
			must(t, o.Management.Client.Delete(t.Context(), o.caSecret(v1alpha1.CAStateSecretName)))
			o.within(t, o.hasCA(v1alpha1.CAStateSecretName))
			o.caUnchanged(t, before)
		},
	)
	that(t, "the controller creates a new CA when both Secrets are lost, and open tunnels stay open", func(t *testing.T) {
		o.loseCA(t, before)
		must(t, o.allReachable(t.Context()))
	})
	that(t, "an xds-server Pod that starts with the new CA is not trusted by existing edges", func(t *testing.T) {
		o.kubelet.hold(func() {
			must(t, o.XDSServerPods().End(1, grace))
			must(t, o.XDSServerPods().Start(t.Context(), 1))
		})
		must(t, o.allReachable(t.Context()))
	})
	that(
		t,
		"the documented commands restore both Secrets, and every edge reconnects (the test starts the Pods)",
		func(t *testing.T) {
			o.run(t, block(t, lostCA, 0))
			measured("ca_back_s", o.within(t, func(ctx context.Context) error { // the output of the last command
				now, err := o.rotation(ctx)
				if err == nil && (len(now.CAs) != 1 || now.CAs[0].Serial != before) {
					err = fmt.Errorf("the CAs are %+v", now.CAs)
				}
				return err
			}).Seconds())
			o.caUnchanged(t, before)
		},
	)
	that(t, "another edge enrols after the CA is restored", func(t *testing.T) { o.another(t) })
}

// slack is how much longer than documented a busy machine may take.
const slack = 5 * time.Second

// caUnchanged fails the test unless the CA is unchanged, no problem is reported, and each edge is unchanged.
func (o *operations) caUnchanged(t *testing.T, serial string) {
	t.Helper()
	if now := o.serial(t); now != serial {
		t.Errorf("the CA was %s, is %s", serial, now)
	}
	o.within(t, o.healthy)
	o.edgesUnchanged(t)
}

// another enrols one more edge, and removes it again.
func (o *operations) another(t *testing.T) {
	t.Helper()
	e := o.enrol(t, o.clusters[0])
	o.within(t, o.healthy)
	world.StopEdge(t, e.Agent)
	o.edges = o.edges[:len(o.edges)-1]
}

func (o *operations) caSecret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: lab.InstallationNamespace, Name: name}}
}

// hasCA returns a condition that is nil once a Secret of the CA exists.
func (o *operations) hasCA(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		secret := o.caSecret(name)
		return o.Management.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	}
}

// anyLogs returns a condition that is nil once one of a program's replicas has logged a text.
func (o *operations) anyLogs(program, text string) func(context.Context) error {
	return func(context.Context) error {
		err := proc.HasText(o.LogFile(program), text)
		if err != nil {
			err = proc.HasText(o.LogFile(program+"-1"), text)
		}
		return err
	}
}

// loseCA deletes both Secrets, and waits for a new CA.
func (o *operations) loseCA(t *testing.T, before string) {
	t.Helper()
	lines := strings.SplitAfter(block(t, lostCA, 0), "\n")
	o.run(t, strings.Join(lines[:3], "")) // stop the controller, delete the Secrets
	o.run(t, strings.Join(lines[4:6], ""))
	o.within(t, func(ctx context.Context) error {
		now, err := o.rotation(ctx)
		if err == nil && (len(now.CAs) != 1 || now.CAs[0].Serial == before) {
			err = fmt.Errorf("the CAs are %+v", now.CAs)
		}
		return err
	})
}

// allReachable returns nil if all workload clusters are reachable, whatever status reports.
func (o *operations) allReachable(ctx context.Context) error {
	for _, c := range o.clusters {
		if err := c.Reach(ctx); err != nil {
			return fmt.Errorf("reaching %s: %w", c, err)
		}
	}
	return nil
}

// caStolen simulates the theft of the CA's key, and proves that the documented steps make the key useless.
func (o *operations) caStolen(t *testing.T) {
	thief := o.forge(t)
	that(t, "a client with the key of the CA can connect as any edge", func(t *testing.T) {
		must(t, o.Outsider(thief).Open(t.Context(), "gateway-0", claimOf(thief)))
	})
	that(t, "the documented commands replace the CA at once (the test starts the Pods)", func(t *testing.T) {
		o.run(t, block(t, stolenCA, 0))
		o.run(t, "kubectl -n "+lab.InstallationNamespace+" rollout status statefulset/gateway --timeout=3m")
	})
	that(t, "each edge enrols again with a new bootstrap file", func(t *testing.T) {
		for _, e := range o.edges {
			fetch := strings.ReplaceAll(block(t, stolenCA, 1), "c1-", e.of.Name+"-")
			o.run(t, fetch)
			file, err := os.ReadFile(o.folder + "/bootstrap.yaml")
			must(t, err)
			must(t, os.WriteFile(o.BootstrapFile(e.name, 0), file, 0o600))
			must(t, e.Terminate(grace))
			e.Resume()
		}
		measured("ca_stolen_back_s", o.within(t, o.healthy).Seconds())
	})
	that(
		t,
		"gateways and the control channel reject certificates of the previous CA",
		func(t *testing.T) {
			thief.Roots = world.Steal(t, o.edges[0].Agent).Roots
			if code, err := o.requestTunnel(t.Context(), thief); err == nil {
				t.Errorf("the gateway answers %d", code)
			}
			if names, err := o.Outsider(thief).Fetch(t.Context(), thief.Subject.NodeID()); err == nil {
				t.Errorf("the control channel gives it %q", names)
			}
		},
	)
	o.inspect(t)
	that(t, "another edge enrols after the CA is restored", func(t *testing.T) { o.another(t) })
}

// requestTunnel requests a tunnel from a gateway.
func (o *operations) requestTunnel(ctx context.Context, s outsider.Stolen) (int, error) {
	return o.Outsider(s).Handshake(ctx, "gateway-0", claimOf(s))
}

// claimOf returns the claim of the subject's own names.
func claimOf(s outsider.Stolen) outsider.Claim {
	return outsider.Claim{Node: s.Subject.NodeID(), ID: world.Domain.TunnelID(s.Subject.ID)}
}

// forge issues a certificate for the first edge's subject with the CA's key.
func (o *operations) forge(t *testing.T) outsider.Stolen {
	t.Helper()
	secret := o.caSecret(v1alpha1.CASecretName)
	must(t, o.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	ca, err := certs.ParseCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	must(t, err)
	stolen := world.Steal(t, o.edges[0].Agent)
	identity, err := outsider.Forge(
		ca, world.Domain, stolen.Subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour),
	)
	must(t, err)
	stolen.Certificate = identity.TLSCertificate()
	return stolen
}
