package sight

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/world"
)

func inNamespace(name string) client.ListOption { return client.InNamespace(name) }
func keyOf(o client.Object) client.ObjectKey    { return client.ObjectKeyFromObject(o) }
func (r *room) at(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: name}
}

// sibling returns an additional Cluster of the room, whether it exists or not.
func (r *room) sibling(name string) *lab.Cluster { return r.world.Cluster(r.at(name)) }

// edit changes the kubeconfig like a user with an editor.
func (r *room) edit(t *testing.T, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) {
	t.Helper()
	eventually(t, func(ctx context.Context) error { // retried, because the controller may write too
		secret, err := r.Secret(ctx, "-kubeconfig")
		if err != nil {
			return err
		}
		config, err := clientcmd.Load(secret.Data["value"])
		if err != nil {
			return err
		}
		current := config.Contexts[config.CurrentContext]
		change(config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo])
		if secret.Data["value"], err = clientcmd.Write(*config); err != nil {
			return err
		}
		return r.world.Management.Client.Update(ctx, secret)
	})
}

// deleteKubeconfig deletes the kubeconfig Secret.
func (r *room) deleteKubeconfig(t *testing.T) {
	t.Helper()
	secret, err := r.Secret(t.Context(), "-kubeconfig")
	must(t, err)
	must(t, r.world.Management.Client.Delete(t.Context(), secret))
}

// provide writes the kubeconfig Secret like the control-plane provider, if the Secret does not exist.
func (r *room) provide(t *testing.T) {
	t.Helper()
	secret, err := r.ProviderSecret()
	must(t, err)
	ca, err := r.Secret(t.Context(), "-ca")
	must(t, err)
	secret.OwnerReferences = ca.OwnerReferences
	if err := r.world.Management.Client.Create(t.Context(), secret); !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
}

// provideAnew deletes the kubeconfig Secret, as the cure says, and writes it again like its provider.
func (r *room) provideAnew(t *testing.T) {
	t.Helper()
	r.deleteKubeconfig(t)
	r.provide(t)
}

// client returns a client certificate with its key.
func (r *room) client(t *testing.T, ca *pki.Authority, end time.Time, groups ...string) (cert, key []byte) {
	t.Helper()
	pair, err := ca.Issue(
		pki.LeafSpec{CommonName: "kubernetes-admin", Organizations: groups, Usage: x509.ExtKeyUsageClientAuth, NotAfter: end},
	)
	must(t, err)
	return pair.CertPEM, pair.KeyPEM
}

// kubectl runs kubectl in the network of the workload apiserver.
func (r *room) kubectl(t *testing.T, kubeconfig []byte, args ...string) (string, error) {
	t.Helper()
	file := r.world.File(r.name + "-admin.kubeconfig")
	must(t, os.WriteFile(file, kubeconfig, 0o600))
	out, err := r.site.Command(t.Context(), r.world.Root()+"/bin/kubectl", append([]string{
		"--kubeconfig=" + file,
		"--cache-dir=" + r.world.File("kubectl-"+r.name),
	}, args...)...).
		CombinedOutput()
	if err != nil {
		err = fmt.Errorf("running kubectl: %w: %s", err, out)
	}
	return string(out), err
}

// renew waits until a Tunnel has been created again, and replaces the edge by one with the newest bootstrap file.
func (r *room) renew(t *testing.T) {
	t.Helper()
	world.StopEdge(t, r.edge)
	eventually(t, func(ctx context.Context) error {
		tunnel, err := r.Tunnel(ctx)
		if err != nil {
			return err
		}
		if tunnel.DeletionTimestamp != nil || len(tunnel.Status.Tokens) == 0 {
			return fmt.Errorf("there is no token yet")
		}
		secret, err := r.Secret(ctx, v1alpha1.BootstrapSecretSuffix)
		if err == nil && !metav1.IsControlledBy(secret, tunnel) {
			err = fmt.Errorf("the bootstrap Secret is another Tunnel's")
		}
		return err
	})
	must(t, r.PatchTunnel(t.Context(), map[string]any{}))
	r.enrol(t)
}

// bare creates an additional Cluster for the room's apiserver, without an edge. The default mode is connect.
func (r *room) bare(t *testing.T, name string, mode v1alpha1.KubeconfigMode) *lab.Cluster {
	t.Helper()
	if mode == "" {
		mode = v1alpha1.KubeconfigModeConnect
	}
	c, err := r.world.CreateCluster(
		t.Context(), lab.ClusterSpec{Name: name, Namespace: r.Namespace, APIServer: r.api.APIServer, Mode: mode},
	)
	must(t, err)
	must(t, c.SetProvisioned(t.Context()))
	eventually(t, func(ctx context.Context) error {
		tunnel, err := c.Tunnel(ctx)
		if err == nil && len(tunnel.Status.Conditions) == 0 {
			err = errors.New("nobody has looked at the Tunnel yet")
		}
		return err
	})
	return c
}

// remove deletes an additional Cluster.
func (r *room) remove(t *testing.T, c *lab.Cluster) {
	t.Helper()
	must(t, c.Delete(t.Context()))
}

// enrolSibling starts an edge for an additional Cluster. It ends with the fault.
func (r *room) enrolSibling(t *testing.T, c *lab.Cluster) {
	t.Helper()
	file, err := c.Bootstrap(t.Context())
	must(t, err)
	edge, err := r.world.RunEdge(lab.EdgeSpec{Name: "edge-" + c.Name, Bootstraps: [][]byte{file}, Site: r.site.Namespace})
	must(t, err)
	t.Cleanup(func() { world.StopEdge(t, edge) })
}

// gone returns a condition that is nil once there is neither a Cluster nor a Tunnel with a name.
func (r *room) gone(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.sibling(name).Tunnel(ctx)
		if err == nil {
			return errors.New("the Tunnel is still there")
		}
		return client.IgnoreNotFound(err)
	}
}

// serves returns nil if a Tunnel has recorded a name.
func serves(ctx context.Context, c *lab.Cluster, name string) error {
	tunnel, err := c.Tunnel(ctx)
	if err != nil {
		return err
	}
	for _, n := range tunnel.Status.Names {
		if n == name {
			return nil
		}
	}
	return fmt.Errorf("%s serves %v", c, tunnel.Status.Names)
}

// limited returns the flags of a user without permissions.
func (r *room) limited(t *testing.T) []string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "looks"}}
	must(t, r.world.Management.Client.Create(t.Context(), account))
	request := &authenticationv1.TokenRequest{}
	must(t, r.world.Management.Client.SubResource("token").Create(t.Context(), account, request))
	kubeconfig, err := kube.Kubeconfig(
		"management", r.world.Management.URL(), r.world.Management.CA.CertPEM,
		clientcmdapi.AuthInfo{Token: request.Status.Token},
	)
	must(t, err)
	file := r.world.File("looks-" + r.name)
	must(t, os.WriteFile(file, kubeconfig, 0o600))
	return []string{"--kubeconfig=" + file}
}

// permit lets that user read Clusters and Tunnels, but no Secrets. Everything else is then checked.
func (r *room) permit(t *testing.T) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "looks"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"clusters"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"fairlead.dev"}, Resources: []string{"tunnels"}, Verbs: []string{"get", "list", "watch"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.Namespace,
			Name:      "looks",
		}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "looks"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: r.Namespace, Name: "looks"}},
	}
	must(t, r.world.Management.Client.Create(t.Context(), role))
	must(t, r.world.Management.Client.Create(t.Context(), binding))
	eventually(t, func(ctx context.Context) error {
		answer, err := r.Check(ctx, "")
		if err == nil && answer.Status != check.OK {
			err = fmt.Errorf("a user with read permission for Clusters and Tunnels gets %s", answer)
		}
		return err
	})
}
