package security

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// rivals is the namespace of a tenant with all permissions in it.
const rivals = "rivals"

// people holds users: owner is that tenant, and viewer has the viewer's roles of deploy/kubernetes.
type people struct {
	in            *installation
	admin         client.Client
	owner, viewer client.Client
	ownerConfig   *rest.Config
}

// objectAttacks attack through the management cluster's apiserver, with the permissions of tenants.
func objectAttacks(t *testing.T, in *installation) {
	p := newPeople(t, in)
	t.Cleanup(func() { p.leave(t) })
	p.otherNamespaces(t)
	p.secretsOfViewers(t)
	p.maliciousObjects(t)
	p.stolenID(t)
	p.rejectedTunnel(t)
	p.webhook(t)
}

func newPeople(t *testing.T, in *installation) *people {
	t.Helper()
	p := &people{in: in, admin: in.Management.Client, ownerConfig: kubetest.Impersonate(in.Management.Config, "rival")}
	var err error
	p.owner, err = client.New(p.ownerConfig, client.Options{Scheme: p.admin.Scheme()})
	must(t, err)
	p.viewer, err = client.New(
		kubetest.Impersonate(in.Management.Config, "looker"), client.Options{Scheme: p.admin.Scheme()},
	)
	must(t, err)
	must(
		t,
		client.IgnoreAlreadyExists(
			p.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: rivals}}),
		),
	)
	p.give(t, rivals, "rival")
	meta := metav1.ObjectMeta{Name: "fairlead-viewer-test"}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "looker"}}
	for _, o := range []client.Object{
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName,
			Kind:     "ClusterRole", Name: "fairlead-viewer",
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: lab.InstallationNamespace, Name: meta.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "fairlead-viewer"},
		},
	} {
		must(t, p.admin.Create(t.Context(), o))
		t.Cleanup(func() { _ = p.admin.Delete(context.WithoutCancel(t.Context()), o) })
	}
	eventually(t, func(ctx context.Context) error {
		return p.owner.List(ctx, &corev1.SecretList{}, client.InNamespace(rivals))
	})
	eventually(t, func(ctx context.Context) error { return p.viewer.List(ctx, &v1alpha1.TunnelList{}) })
	return p
}

// give grants a user all permissions in a namespace, and returns a function that revokes them.
func (p *people) give(t *testing.T, namespace, user string) (takeBack func()) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "all-" + user}
	role := &rbacv1.Role{
		ObjectMeta: meta,
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	must(t, p.admin.Create(t.Context(), role))
	must(t, p.admin.Create(t.Context(), binding))
	return func() {
		must(t, p.admin.Delete(t.Context(), binding))
		must(t, p.admin.Delete(t.Context(), role))
	}
}

// leave deletes all objects of the tenant.
func (p *people) leave(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	for _, o := range []client.Object{&clusterv1.Cluster{}, &v1alpha1.Tunnel{}, &corev1.Secret{}} {
		if err := p.admin.DeleteAllOf(ctx, o, client.InNamespace(rivals)); err != nil {
			t.Errorf("leaving: %v", err)
		}
	}
}

// victimIs returns everything of the victim that a tenant of another namespace must not change.
func (p *people) victimIs(ctx context.Context) (string, error) {
	tunnel, err := p.in.victim.Tunnel(ctx)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{
		tunnel.UID, tunnel.Spec, tunnel.OwnerReferences, tunnel.Finalizers, tunnel.Annotations, tunnel.Status.ID,
		tunnel.Status.Hostname, tunnel.Status.Names,
	})
	if err != nil {
		return "", err
	}
	contents := []string{string(text)}
	var secrets corev1.SecretList
	if err := p.admin.List(ctx, &secrets, client.InNamespace(world.Namespace)); err != nil {
		return "", err
	}
	for i := range secrets.Items {
		if strings.HasPrefix(secrets.Items[i].Name, "mark-") { // of a Cluster that is being deleted
			continue
		}
		contents = append(contents, fmt.Sprint(secrets.Items[i].Name, secrets.Items[i].UID, secrets.Items[i].ResourceVersion))
	}
	slices.Sort(contents)
	var record corev1.ConfigMap
	key := client.ObjectKey{Namespace: lab.InstallationNamespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	if err := client.IgnoreNotFound(p.admin.Get(ctx, key, &record)); err != nil {
		return "", err
	}
	_, ended := record.Data[tunnel.Spec.ID]
	return strings.Join(append(contents, fmt.Sprint("ended: ", ended)), "\n"), nil
}

// unharmed fails the test if anything of the victim has changed, now or a moment later.
func (p *people) unharmed(t *testing.T, before string) {
	t.Helper()
	for range 4 {
		now, err := p.victimIs(t.Context())
		must(t, err)
		if now != before {
			t.Errorf("the victim was\n%s\nand is\n%s", before, now)
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	must(t, p.in.victim.Works(t.Context()))
}

// secretsOfViewers tries to read Secrets as a viewer. No RBAC rule may permit that.
func (p *people) secretsOfViewers(t *testing.T) {
	reads := func(ctx context.Context) error {
		for _, namespace := range []string{"", lab.InstallationNamespace, world.Namespace, rivals} {
			if err := p.viewer.List(ctx, &corev1.SecretList{}, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
				return fmt.Errorf("listing in namespace %q: %w", namespace, err)
			}
			for _, name := range []string{v1alpha1.CASecretName, p.in.victim.Name + "-kubeconfig", p.in.victim.Name +
				v1alpha1.BootstrapSecretSuffix} {
				if err := p.viewer.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name},
					&corev1.Secret{}); !apierrors.IsForbidden(
					err,
				) &&
					namespace != "" {
					return fmt.Errorf("getting %s/%s: %w", namespace, name, err)
				}
			}
		}
		return nil
	}
	attack(t, "a viewer reads Secrets", "RBAC: the viewer's roles have no Secret (deploy/kubernetes/viewer.yaml)",
		func(t *testing.T) { must(t, reads(t.Context())) },
		func(t *testing.T) {
			takeBack := p.give(t, world.Namespace, "looker")
			defer takeBack()
			eventually(t, func(ctx context.Context) error {
				if reads(ctx) == nil {
					return errors.New("it is still refused")
				}
				return nil
			})
		})
}

// otherNamespaces tries each verb on each of our objects, and on objects that we read, in the victim's namespace.
func (p *people) otherNamespaces(t *testing.T) {
	attack(t, "a namespace owner uses each verb on each object of another namespace", "RBAC of the management cluster",
		func(t *testing.T) {
			before, err := p.victimIs(t.Context())
			must(t, err)
			allowed, tried := p.tryAll(t)
			if len(allowed) > 0 {
				t.Errorf("allowed: %v", allowed)
			}
			measured("verbs and objects tried", float64(tried))
			p.unharmed(t, before)
		},
		func(t *testing.T) {
			takeBack := p.give(t, world.Namespace, "rival")
			defer takeBack()
			eventually(t, func(ctx context.Context) error {
				return p.owner.Get(ctx, client.ObjectKeyFromObject(p.victimTunnel()), &v1alpha1.Tunnel{})
			})
		})
}

func (p *people) victimTunnel() *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: p.in.victim.Namespace, Name: p.in.victim.Name}}
}

// bindings are the bindings of the admission policies that guard ids and their record.
var bindings = []string{"tunnel-id.fairlead.dev", "tunnel-status.fairlead.dev"}

// withoutPolicies runs a function while these policies are not enforced.
func (p *people) withoutPolicies(t *testing.T, run func()) {
	t.Helper()
	var kept []*unstructured.Unstructured
	for _, name := range bindings {
		o := &unstructured.Unstructured{}
		o.SetAPIVersion("admissionregistration.k8s.io/v1")
		o.SetKind("ValidatingAdmissionPolicyBinding")
		must(t, p.admin.Get(t.Context(), client.ObjectKey{Name: name}, o))
		must(t, p.admin.Delete(t.Context(), o.DeepCopy()))
		o.SetResourceVersion("")
		o.SetUID("")
		kept = append(kept, o)
	}
	defer func() {
		for _, o := range kept {
			must(t, p.admin.Create(t.Context(), o))
		}
		eventually(t, func(ctx context.Context) error {
			err := p.owner.Create(ctx, rivalTunnel("probe", strings.Repeat("a", 20)), client.DryRunAll)
			if !apierrors.IsForbidden(err) {
				return fmt.Errorf("the policy does not hold again: %w", err)
			}
			return nil
		})
	}()
	eventually(t, func(ctx context.Context) error {
		return p.owner.Create(ctx, rivalTunnel("probe", strings.Repeat("a", 20)), client.DryRunAll)
	})
	run()
}

func rivalTunnel(name, id string) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: rivals, Name: name},
		Spec:       v1alpha1.TunnelSpec{ID: id},
	}
}

func rivalCluster(name string) *clusterv1.Cluster {
	c := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: rivals,
			Name:      name,
			Labels:    map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
		},
	}
	c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "192.0.2.1", Port: 6443}
	c.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io",
		Kind:     "LabCluster",
		Name:     name,
	}
	return c
}

// accepted returns nil once a Tunnel's condition Accepted has a reason.
func accepted(ctx context.Context, from client.Client, o *v1alpha1.Tunnel, reason string) error {
	if err := from.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	if c := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccepted); c == nil || c.Reason != reason {
		return fmt.Errorf("condition %+v, want %s", c, reason)
	}
	return nil
}
