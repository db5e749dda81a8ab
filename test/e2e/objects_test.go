package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
)

// badObjects proves that an error in one object is reported on that object and does not affect others.
func (w *world) badObjects(t *testing.T) {
	before := w.versions(t)
	promise.That(
		t, "a Cluster whose hostname exceeds 253 bytes gets a condition that names the field", w.hostnameTooLong,
	)
	victim := w.bareCluster(t, lab.ClusterSpec{Name: "victim"})
	_, err := victim.WaitKubeconfig(t.Context())
	must(t, err)
	for name, tc := range map[string]struct {
		spec map[string]any
		says []string
	}{
		"an extra name of another Tunnel gets a condition that names the field and that Tunnel": {
			map[string]any{"extraNames": []any{berlinExtraName}}, []string{
				v1alpha1.ReasonInvalidExtraName,
				"spec.extraNames[0]", namespace + "/berlin",
			},
		},
		"an extra name within the tunnel domain gets a condition that names the field": {
			map[string]any{"extraNames": []any{hostname("paris")}}, []string{
				v1alpha1.ReasonInvalidExtraName,
				"spec.extraNames[0]",
			},
		},
	} {
		promise.That(t, name, func(t *testing.T) {
			must(t, victim.PatchTunnel(t.Context(), tc.spec))
			eventually(t, refusedWith(victim, tc.says...))
			must(t, w.allWork(t.Context()))
		})
	}
	for name, tc := range map[string]struct {
		spec map[string]any
		says []string
	}{
		"the apiserver rejects a malformed extra name and states the remedy": {
			map[string]any{"extraNames": []any{"good.example.org", "Not_A_Name"}}, []string{
				"spec.extraNames[1]",
				"lower-case DNS name",
			},
		},
		"the apiserver rejects an IP address as an extra name and states the remedy": {
			map[string]any{"extraNames": []any{"192.0.2.7"}}, []string{"spec.extraNames[0]", "no IP address"},
		},
	} {
		promise.That(t, name, func(t *testing.T) {
			err := victim.PatchTunnel(t.Context(), tc.spec)
			for _, text := range tc.says {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("got %v, want it to say %q", err, text)
				}
			}
		})
	}
	promise.That(t, "a corrected object is served again", func(t *testing.T) {
		must(t, victim.PatchTunnel(t.Context(), map[string]any{"extraNames": []any{"good.example.org"}}))
		eventually(t, acceptedAs(victim, "good.example.org"))
	})
	promise.That(t, "invalid objects do not affect other Clusters", func(t *testing.T) {
		for name, version := range w.versions(t) {
			if version != before[name] {
				t.Errorf("%s changed from %s to %s", name, before[name], version)
			}
		}
		must(t, w.worksFor(t.Context(), calm()))
	})
	promise.That(t, "an extra name routes to the workload cluster of its Tunnel", func(t *testing.T) {
		must(t, w.reachByName(t.Context(), w.berlin, berlinExtraName))
	})
	promise.That(
		t, "an older Tunnel cannot take a name that a newer Tunnel serves", func(t *testing.T) { w.noTakingByAge(t, victim) },
	)
	must(t, victim.Delete(t.Context()))
}

// noTakingByAge lets an older member claim an extra name that is served for a younger Cluster.
func (w *world) noTakingByAge(t *testing.T, younger *lab.Cluster) {
	const name = "good.example.org"
	older := w.paris // its Tunnel has no fields set by users, so resetting the claim resets nothing else
	if a, b := w.tunnel(t, older.Cluster).CreationTimestamp, w.tunnel(t, younger).CreationTimestamp; !a.Before(&b) {
		t.Fatalf("%s is of %s, and not older than %s of %s", older, a, younger, b)
	}
	must(t, older.PatchTunnel(t.Context(), map[string]any{"extraNames": []any{name}}))
	eventually(t, refusedWith(older.Cluster, v1alpha1.ReasonInvalidExtraName, "spec.extraNames[0]", namespace+"/victim"))
	must(t, acceptedAs(younger, name)(t.Context()))
	if names := w.tunnel(t, younger).Status.Names; !slices.Contains(names, name) {
		t.Errorf("on record for %s are %v, without %s", younger, names, name)
	}
	must(t, w.allWork(t.Context()))
	must(t, older.PatchTunnel(t.Context(), map[string]any{}))
	eventually(t, acceptedAs(older.Cluster))
}

// versions returns the state that the controller keeps for the members: their Secrets, and the served parts of their
// Tunnels. The state of their edges is left out, because it may change at any time.
func (w *world) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, m := range w.members() {
		tunnel := w.tunnel(t, m.Cluster)
		versions["Tunnel "+m.Name] = fmt.Sprint(
			tunnel.Spec, tunnel.Status.Names, tunnel.Status.ID,
			meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionAccepted),
			meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigReady),
		)
		for _, suffix := range []string{"-kubeconfig", v1alpha1.BootstrapSecretSuffix} {
			secret, err := m.Secret(t.Context(), suffix)
			must(t, err)
			versions["Secret "+secret.Name] = secret.ResourceVersion
		}
	}
	return versions
}

func (w *world) hostnameTooLong(t *testing.T) {
	long := w.bareCluster(t, lab.ClusterSpec{Name: strings.Repeat("c", 63), Namespace: strings.Repeat("n", 63)})
	eventually(t, refusedWith(long, v1alpha1.ReasonInvalidName, "metadata.name", "253"))
	written, err := long.ProviderSecret()
	must(t, err)
	kubeconfig, err := long.Kubeconfig(t.Context())
	must(t, err)
	if string(kubeconfig) != string(written.Data["value"]) {
		t.Error("its kubeconfig was changed though it can't be served")
	}
	must(t, w.allWork(t.Context()))
	must(t, long.Delete(t.Context()))
}

// refusedWith returns nil once Accepted is False and its message contains all of the texts.
func refusedWith(c *lab.Cluster, texts ...string) func(context.Context) error {
	return accepted(c, metav1.ConditionFalse, texts)
}

// acceptedAs returns nil once Accepted is True and its message contains all of the texts.
func acceptedAs(c *lab.Cluster, texts ...string) func(context.Context) error {
	return accepted(c, metav1.ConditionTrue, texts)
}

func accepted(c *lab.Cluster, status metav1.ConditionStatus, texts []string) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := c.Tunnel(ctx)
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionAccepted)
		if condition == nil || condition.Status != status {
			return fmt.Errorf("condition Accepted is %+v", condition)
		}
		for _, text := range texts {
			if !strings.Contains(condition.Reason+" "+condition.Message, text) {
				return fmt.Errorf("condition Accepted says %s: %s, without %q", condition.Reason, condition.Message, text)
			}
		}
		return nil
	}
}

// reachByName reaches a member's apiserver by another of its names.
func (w *world) reachByName(ctx context.Context, m *member, name string) error {
	config, err := clientcmd.Load(m.kubeconfig)
	if err != nil {
		return err
	}
	config.Clusters[m.Name].TLSServerName = name
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return m.ReachWith(ctx, kubeconfig)
}
