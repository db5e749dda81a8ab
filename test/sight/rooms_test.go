package sight

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/faults"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/world"
)

// objectFaults are faults of one Cluster's objects.
var objectFaults = []fault{
	{
		ID: "wrong-name", Hop: check.HopCluster,
		Title: "the name of the Cluster is mistyped",
		Cause: "the namespace or the management cluster is wrong",
		Cure:  "-A lists all",
		Do:    "correct the name, the namespace (`-n`) or the management cluster (`--context`)",
		Of:    "osol",
		// the cure is to type the command again
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("") },
		Inject:  func(*testing.T, *room) func(*testing.T) { return func(*testing.T) {} },
	},
	{
		ID: "rbac-user", Hop: check.HopCluster,
		Title: "the user of check may not read Clusters (RBAC)",
		Cause: "may not read clusters.cluster.x-k8s.io",
		Cure:  "allow this user to get, list and watch",
		Do:    "allow that user to get, list and watch Clusters and Tunnels in the namespace",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			r.flags = r.limited(t)
			return func(t *testing.T) { r.permit(t); r.flags = nil }
		},
	},
	{
		ID: "label-missing", Hop: check.HopCluster,
		Title: "the label that asks for a tunnel is missing",
		Cause: "the Cluster has not opted in",
		Cure:  "label cluster",
		Do:    "`kubectl label cluster <name> fairlead.dev/tunnel=enabled`; edges of an earlier Tunnel must enrol again",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			must(
				t,
				r.Patch(
					t.Context(), map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.TunnelLabel: nil}}},
				),
			)
			return func(t *testing.T) {
				must(
					t,
					r.Patch(
						t.Context(),
						map[string]any{
							"metadata": map[string]any{"labels": map[string]any{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}},
						},
					),
				)
				r.renew(t)
			}
		},
	},
	{
		ID: "paused", Hop: check.HopCluster, Status: check.Warning, Short: true,
		Title: "the Cluster is paused",
		Cause: "the Cluster was paused",
		Cure:  `{"spec":{"paused":false}}`,
		Do:    "set `spec.paused` of the Cluster to false",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			must(t, r.Patch(t.Context(), map[string]any{"spec": map[string]any{"paused": true}}))
			return func(t *testing.T) {
				must(t, r.Patch(t.Context(), map[string]any{"spec": map[string]any{"paused": false}}))
			}
		},
	},
	{
		ID: "extra-name-taken", Hop: check.HopTunnel, Status: check.Warning, Short: true,
		Title: "an extra name belongs to another Cluster",
		Cause: "another Tunnel has it",
		Cure:  "remove the name from spec.extraNames",
		Do:    "remove the name from `spec.extraNames` of one of the two Tunnels",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			rival := r.bare(t, "rival", "")
			must(t, rival.PatchTunnel(t.Context(), map[string]any{"extraNames": []any{"api.shops.example.test"}}))
			eventually(t, func(ctx context.Context) error { return serves(ctx, rival, "api.shops.example.test") })
			must(t, r.PatchTunnel(t.Context(), map[string]any{"extraNames": []any{"api.shops.example.test"}}))
			return func(t *testing.T) { must(t, r.PatchTunnel(t.Context(), map[string]any{})); r.remove(t, rival) }
		},
	},
	{
		ID: "hostname-taken", Hop: check.HopTunnel,
		Title:   "two Clusters have the same hostname",
		Cause:   "two Clusters claim one hostname",
		Cure:    "rename or delete one of the two",
		Do:      "rename or delete one of the two Clusters",
		Of:      "twin.one",
		Healthy: func(r *room) func(context.Context) error { return faults.HopIs(r, "twin.one", check.HopTunnel) },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			first := r.bare(t, "twin--one", "")
			eventually(
				t, func(ctx context.Context) error { return serves(ctx, first, world.HostnameIn(r.Namespace, "twin--one")) },
			)
			r.bare(t, "twin.one", "")
			return func(t *testing.T) { r.remove(t, first) }
		},
	},
	{
		ID: "secret-deleted", Hop: check.HopKubeconfig, Short: true,
		Title:  "the kubeconfig Secret is deleted, and its provider has not created it again",
		Cause:  "or it was deleted",
		Cure:   "creates it again",
		Do:     "wait until the control-plane provider creates it again; if it does not, see its log",
		Inject: func(t *testing.T, r *room) func(*testing.T) { r.deleteKubeconfig(t); return r.provide },
	},
	{
		ID: "secret-garbage", Hop: check.HopKubeconfig,
		Title: "the kubeconfig Secret holds no kubeconfig",
		Cause: "its content was overwritten",
		Cure:  "delete it",
		Do:    "delete the Secret: its provider creates it again",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			secret, err := r.Secret(t.Context(), "-kubeconfig")
			must(t, err)
			secret.Data["value"] = []byte("no: kubeconfig")
			must(t, r.world.Management.Client.Update(t.Context(), secret))
			return r.provideAnew
		},
	},
	{
		ID: "wrong-ca", Hop: check.HopKubeconfig,
		Title: "the kubeconfig has another CA",
		Cause: "another CA",
		Cure:  "delete it",
		Do:    "delete the Secret: its provider creates it again",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			other, err := pki.NewAuthority("kubernetes")
			must(t, err)
			r.edit(t, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = other.CertPEM })
			return r.provideAnew
		},
	},
	{
		ID: "client-certificate-expired", Hop: check.HopKubeconfig,
		Title: "the kubeconfig's client certificate has expired",
		Cause: "it was not renewed",
		Cure:  "delete secret",
		Do:    "delete the Secret: its provider creates it again, with a new certificate",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			r.edit(t, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.ClientCertificateData, u.ClientKeyData = r.client(t, r.api.CA, time.Now().Add(-time.Minute), "system:masters")
			})
			return r.provideAnew
		},
	},
	{
		ID: "client-certificate-foreign", Hop: check.HopAuthentication, Short: true,
		Title: "the kubeconfig's client certificate is of another CA",
		Cause: "is of another CA",
		Cure:  "delete it",
		Do:    "delete the Secret: its provider creates it again",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			other, err := pki.NewAuthority("kubernetes")
			must(t, err)
			r.edit(t, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.ClientCertificateData, u.ClientKeyData = r.client(t, other, time.Time{}, "system:masters")
			})
			return r.provideAnew
		},
	},
	{
		ID: "apiserver-403", Hop: check.HopAuthentication,
		Title: "the kubeconfig's user may do nothing in the workload cluster (403)",
		Cause: "has no permissions in the workload cluster",
		Cure:  "kubectl create clusterrolebinding kubeadm:cluster-admins",
		Do:    "bind the user's group to `cluster-admin` in the workload cluster again",
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			r.edit(t, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
				u.ClientCertificateData, u.ClientKeyData = r.client(t, r.api.CA, time.Time{}, "kubeadm:cluster-admins")
			})
			return func(t *testing.T) {
				admin, err := kube.Kubeconfig(
					r.name, r.api.URL(), r.api.CA.CertPEM,
					clientcmdapi.AuthInfo{ClientCertificateData: r.api.Admin.CertPEM, ClientKeyData: r.api.Admin.KeyPEM},
				)
				must(t, err)
				_, err = r.kubectl(
					t, admin, "create", "clusterrolebinding", "kubeadm:cluster-admins", "--clusterrole=cluster-admin",
					"--group=kubeadm:cluster-admins",
				)
				must(t, err)
			}
		},
	},
	{
		ID: "quota", Hop: check.HopEdge,
		Title:   "a ResourceQuota allows no further Secret",
		Cause:   "ResourceQuota full",
		Cure:    "raise the quota",
		Do:      "raise the quota; the controller then retries",
		Of:      "crowd",
		Healthy: func(r *room) func(context.Context) error { return r.Healthy("crowd") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			c := r.bare(t, "crowd", "")
			_, err := c.Bootstrap(t.Context())
			must(t, err)
			quota := r.fullQuota(t)
			secret, err := c.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
			must(t, err)
			must(t, r.world.Management.Client.Delete(t.Context(), secret))
			return func(t *testing.T) {
				must(t, r.world.Management.Client.Get(t.Context(), keyOf(quota), quota))
				quota.Spec.Hard[corev1.ResourceSecrets] = resource.MustParse("100")
				must(t, r.world.Management.Client.Update(t.Context(), quota))
				quota.Status.Hard = quota.Spec.Hard // normally set by the quota controller, which does not run here
				must(t, r.world.Management.Client.Status().Update(t.Context(), quota))
				r.enrolSibling(t, c)
			}
		},
	},
	{
		ID: "deleting", Hop: check.HopCluster, Status: check.Warning,
		Title:   "the Cluster is being deleted",
		Cause:   "the Cluster was deleted",
		Cure:    "lists its finalizers",
		Do:      "wait until the finalizers are removed",
		Of:      "goes",
		Healthy: func(r *room) func(context.Context) error { return r.gone("goes") },
		Inject: func(t *testing.T, r *room) func(*testing.T) {
			c := r.bare(t, "goes", "")
			r.enrolSibling(t, c)
			eventually(t, faults.HopIs(r, c.Name, check.HopWatch))
			must(t, c.Patch(t.Context(), map[string]any{"metadata": map[string]any{"finalizers": []any{"example.test/holds"}}}))
			must(t, c.Delete(t.Context()))
			return func(t *testing.T) {
				must(t, c.Patch(t.Context(), map[string]any{"metadata": map[string]any{"finalizers": nil}}))
			}
		},
	},
}

// fullQuota creates a ResourceQuota that permits no additional Secret. It also writes the status, because the
// controller that counts is not part of an apiserver.
func (r *room) fullQuota(t *testing.T) *corev1.ResourceQuota {
	t.Helper()
	var secrets corev1.SecretList
	must(t, r.world.Management.Client.List(t.Context(), &secrets, inNamespace(r.Namespace)))
	n := resource.MustParse(fmt.Sprint(len(secrets.Items)))
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "full"}}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourceSecrets: n}
	must(t, r.world.Management.Client.Create(t.Context(), quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourceSecrets: n}}
	must(t, r.world.Management.Client.Status().Update(t.Context(), quota))
	return quota
}
