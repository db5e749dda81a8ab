package security

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

// groups are the API groups of objects that Fairlead owns or reads.
var groups = []string{
	"",
	"fairlead.dev",
	"cluster.x-k8s.io",
	"certificates.k8s.io",
	"admissionregistration.k8s.io",
	"rbac.authorization.k8s.io",
	"apps",
	"coordination.k8s.io",
}

// open are resources that Kubernetes opens to every user: they hold only public certificates, or information about that
// user.
var open = []string{"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "clustertrustbundles"}

// tryAll uses each verb of each resource that the apiserver serves in the victim's namespace and in the installation's,
// as the owner of another namespace. It returns what was not rejected.
func (p *people) tryAll(t *testing.T) (allowed []string, tried int) {
	t.Helper()
	known, err := discovery.NewDiscoveryClientForConfig(p.in.Management.Config)
	must(t, err)
	lists, err := known.ServerPreferredResources()
	must(t, err)
	rival, err := dynamic.NewForConfig(p.ownerConfig)
	must(t, err)
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		if !slices.Contains(groups, gv.Group) {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(open, r.Name) {
				continue
			}
			namespaces := []string{""}
			if r.Namespaced {
				namespaces = []string{world.Namespace, lab.InstallationNamespace}
			}
			for _, namespace := range namespaces {
				for _, verb := range r.Verbs {
					var on dynamic.ResourceInterface = rival.Resource(gv.WithResource(r.Name))
					if namespace != "" {
						on = rival.Resource(gv.WithResource(r.Name)).Namespace(namespace)
					}
					tried++
					if err := use(t.Context(), on, verb, gv.WithKind(r.Kind), p.in.victim.Name); !apierrors.IsForbidden(err) {
						allowed = append(allowed, fmt.Sprintf("%s %s in %q: %v", verb, r.Name, namespace, err))
					}
				}
			}
		}
	}
	return allowed, tried
}

// use uses one verb on the object with a name.
func use(
	ctx context.Context, on dynamic.ResourceInterface, verb string, kind schema.GroupVersionKind, name string,
) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	o.SetName(name)
	var err error
	switch verb {
	case "get":
		_, err = on.Get(ctx, name, metav1.GetOptions{})
	case "list":
		_, err = on.List(ctx, metav1.ListOptions{})
	case "watch":
		w, failed := on.Watch(ctx, metav1.ListOptions{})
		if err = failed; err == nil {
			w.Stop()
		}
	case "create":
		_, err = on.Create(ctx, o, metav1.CreateOptions{})
	case "update":
		_, err = on.Update(ctx, o, metav1.UpdateOptions{})
	case "patch":
		if _, err = on.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
			metav1.PatchOptions{}); apierrors.IsForbidden(
			err,
		) {
			_, err = on.Patch(ctx, name, types.MergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, "status")
		}
	case "delete":
		err = on.Delete(ctx, name, metav1.DeleteOptions{})
	case "deletecollection":
		err = on.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	default:
		return fmt.Errorf("the verb %s is not known to this test", verb)
	}
	return err
}

// maliciousObjects writes, as a namespace owner in the owner's namespace, everything that could have an effect outside
// of it.
func (p *people) maliciousObjects(t *testing.T) {
	attack(t, "a namespace owner accesses another namespace with names, copies, owners, annotations and forged Secrets",
		"names and ids go to the Tunnel on record, copies to namespaces that accept them, owners count within a namespace",
		func(t *testing.T) {
			before, err := p.victimIs(t.Context())
			must(t, err)
			p.writeMalice(t)
			p.unharmed(t, before)
			for i := range malice {
				name := fmt.Sprintf("malice-%d", i)
				must(t, client.IgnoreNotFound(p.owner.Delete(t.Context(), rivalCluster(name))))
				must(t, client.IgnoreNotFound(p.owner.Delete(t.Context(), rivalTunnel(name, ""))))
			}
			p.unharmed(t, before)
		},
		func(t *testing.T) { // copies are controlled by an annotation on the Namespace
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: world.Namespace}}
			must(t, p.admin.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace))
			accepts := namespace.DeepCopy()
			metav1.SetMetaDataAnnotation(&accepts.ObjectMeta, v1alpha1.AcceptKubeconfigsAnnotation, rivals)
			must(t, p.admin.Patch(t.Context(), accepts, client.MergeFrom(namespace)))
			defer func() {
				must(
					t,
					p.admin.Patch(
						t.Context(),
						namespace,
						client.RawPatch(
							types.MergePatchType,
							[]byte(`{"metadata":{"annotations":{"`+v1alpha1.AcceptKubeconfigsAnnotation+`":null}}}`),
						),
					),
				)
			}()
			p.copyInto(t)
			copied := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "planted"}}
			eventually(
				t, func(ctx context.Context) error { return p.admin.Get(ctx, client.ObjectKeyFromObject(copied), copied) },
			)
			must(t, p.admin.Delete(t.Context(), rivalCluster("copying")))
			eventually(t, func(ctx context.Context) error {
				if err := p.admin.Get(ctx, client.ObjectKeyFromObject(copied), copied); !apierrors.IsNotFound(err) {
					return fmt.Errorf("the copy is still there: %w", err)
				}
				return nil
			})
		})
}

// copyInto creates a Cluster of the tenant whose kubeconfig is to be copied into the victim's namespace.
func (p *people) copyInto(t *testing.T) {
	t.Helper()
	tunnel := rivalTunnel("copying", "")
	tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{
		{Namespace: world.Namespace, Name: "planted", Exec: &v1alpha1.ExecAudience{Command: "login"}},
	}
	must(t, p.owner.Create(t.Context(), tunnel))
	must(t, p.owner.Create(t.Context(), forgedKubeconfig("copying")))
	must(t, p.owner.Create(t.Context(), rivalCluster("copying")))
}

func forgedKubeconfig(cluster string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: rivals,
			Name:      cluster + "-kubeconfig",
			Labels:    map[string]string{clusterv1.ClusterNameLabel: cluster},
		},
		Data: map[string][]byte{
			"value": []byte(
				"apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n" +
					"contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: x}}]\ncurrent-context: " +
					"x\n",
			),
		},
	}
}

// malice holds every change of a Tunnel that tries to reach another namespace.
var malice = []func(o *v1alpha1.Tunnel, victim *v1alpha1.Tunnel){
	func(o, victim *v1alpha1.Tunnel) { o.Spec.ExtraNames = []string{"api.victim.example.org"} },
	func(o, victim *v1alpha1.Tunnel) {
		o.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{
			{Namespace: victim.Namespace, Name: "planted", Exec: &v1alpha1.ExecAudience{Command: "login"}},
			{Namespace: lab.InstallationNamespace, Name: "planted", Exec: &v1alpha1.ExecAudience{Command: "login"}},
		}
	},
	func(o, victim *v1alpha1.Tunnel) {
		o.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Tunnel", Name: victim.Name, UID: victim.UID,
			BlockOwnerDeletion: ptr.To(true),
		}}
	},
	func(o, victim *v1alpha1.Tunnel) { o.OwnerReferences = victim.OwnerReferences },
	func(o, victim *v1alpha1.Tunnel) {
		o.Annotations = map[string]string{
			v1alpha1.PreparedAnnotation: time.Now().Add(time.Hour).UTC().Format(time.RFC3339), clusterv1.PausedAnnotation: "",
			"clusterctl.cluster.x-k8s.io/delete-for-move": "", v1alpha1.RequestTunnelAnnotation: victim.Namespace + "/" +
				victim.Name,
		}
	},
	func(o, victim *v1alpha1.Tunnel) { o.Finalizers = []string{v1alpha1.TunnelFinalizer} },
	func(o, victim *v1alpha1.Tunnel) {
		for _, e := range victim.Status.Edges {
			o.Spec.RevokedEdges = append(o.Spec.RevokedEdges, strings.TrimPrefix(e.NodeID, "CN="))
		}
	},
	func(o, victim *v1alpha1.Tunnel) { o.Status = victim.Status },
	func(o, victim *v1alpha1.Tunnel) { o.Labels = map[string]string{v1alpha1.CopyLabel: victim.Spec.ID} },
}

// writeMalice creates a Tunnel with a Cluster for each malice, and forged Secrets that name the victim's objects.
func (p *people) writeMalice(t *testing.T) {
	t.Helper()
	victim, err := p.in.victim.Tunnel(t.Context())
	must(t, err)
	for i, malicious := range malice {
		tunnel := rivalTunnel(fmt.Sprintf("malice-%d", i), "")
		malicious(tunnel, victim)
		must(t, p.owner.Create(t.Context(), tunnel))
		if tunnel.Status.ID != "" {
			t.Errorf("malice %d: a forged status was stored", i)
		}
		must(t, p.owner.Create(t.Context(), rivalCluster(tunnel.Name)))
	}
	bootstrap, err := p.in.victim.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	marked := map[string]string{v1alpha1.CopyLabel: victim.Spec.ID, v1alpha1.BootstrapLabel: v1alpha1.BootstrapEdge}
	forged := []*corev1.Secret{
		forgedKubeconfig("malice-0"),
		// A copy that claims to be the victim's, and one that claims to be owned by the victim's Tunnel.
		{
			ObjectMeta: metav1.ObjectMeta{
				Name:        "copy",
				Labels:      marked,
				Annotations: map[string]string{v1alpha1.RequestTunnelAnnotation: victim.Namespace + "/" + victim.Name},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "owned",
				Labels: marked,
				OwnerReferences: []metav1.OwnerReference{
					*metav1.NewControllerRef(victim, v1alpha1.GroupVersion.WithKind("Tunnel")),
				},
			},
		},
		// The victim's own token, as if it were stolen, and a token that the tenant has chosen.
		{
			ObjectMeta: metav1.ObjectMeta{Name: "malice-5" + v1alpha1.BootstrapSecretSuffix, Labels: marked},
			Data:       bootstrap.Data,
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "malice-6" + v1alpha1.BootReportSecretSuffix, Labels: marked},
			Data:       map[string][]byte{v1alpha1.BootstrapTokenKey: []byte("chosen")},
		},
	}
	for _, secret := range forged {
		secret.Namespace = rivals
		if err := p.owner.Create(t.Context(), secret); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	// A user with every verb in a namespace can neither choose an id nor write a status there.
	for what, err := range map[string]error{
		"an id": p.owner.Create(t.Context(), rivalTunnel("chooser", victim.Spec.ID)),
		"a status": p.owner.Status().Patch(t.Context(), rivalTunnel("malice-0", ""), client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"status":{"id":%q}}`, victim.Spec.ID))),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, errors.Join(err))
		}
	}
}
