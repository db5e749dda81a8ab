package check

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/pkg/diagnose/credentials"
	"github.com/fairlead/fairlead/pkg/diagnose/writers"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// checkKubeconfig checks the Secret that Cluster API's controllers read: whether it exists, has the recorded endpoint,
// trusts the workload cluster's CA, and has valid credentials.
func checkKubeconfig(ctx context.Context, v *visit) finding {
	if v.cluster == nil {
		return skipped("the Cluster was not read")
	}
	name := v.key.Name + kubeconfig.Suffix
	cure := "run fairlead check as a user that may read Secrets in namespace " + v.key.Namespace
	if v.Secrets == nil {
		return unknown("Secrets cannot be read from here", cure)
	}
	secret := &corev1.Secret{}
	switch err := v.Secrets.Get(ctx, client.ObjectKey{Namespace: v.key.Namespace, Name: name}, secret); {
	case apierrors.IsForbidden(err):
		return unknown("the user of this command may not read Secret "+name, cure)
	case apierrors.IsNotFound(err):
		return v.noSecret(ctx, name)
	case err != nil:
		return unknown("Secret "+name+" cannot be read: "+text(err), "try again")
	}
	v.secret = secret
	config, entry, err := kubeconfig.Load(secret, v.key.Name)
	if err != nil {
		return broken("Secret "+name+": "+err.Error(), "its content was overwritten"+lastWriter(secret), v.rewrite(name))
	}
	endpoint, err := kubeconfig.Read(secret, v.key.Name)
	if err != nil {
		return broken("Secret "+name+": "+err.Error(), "its content was overwritten"+lastWriter(secret), v.rewrite(name))
	}
	user := credentials.User(config)
	v.use(config, user, endpoint)
	for _, look := range []func() *finding{
		func() *finding { return v.compareTarget(ctx, name, endpoint) },
		func() *finding { return v.compareCA(ctx, name, entry) },
		func() *finding { return v.compareUser(name, user) },
	} {
		if f := look(); f != nil {
			return *f
		}
	}
	return ok("it points to %s%s", endpoint, until(user, v.now()))
}

// noSecret returns the finding for a missing kubeconfig.
func (v *visit) noSecret(ctx context.Context, name string) finding {
	detail := "Secret " + name + " not found"
	if full := v.fullQuota(ctx); full != "" {
		return broken(
			detail,
			full+", so its provider cannot create it",
			"raise the quota: kubectl -n "+v.key.Namespace+" edit resourcequota; the provider then retries and creates the "+
				"Secret",
		)
	}
	provider := "the control-plane provider"
	if kind := v.cluster.Spec.ControlPlaneRef.Kind; kind != "" {
		provider += " (" + kind + ")"
	}
	return broken(
		detail,
		provider+" has not created it yet, or it was deleted",
		provider+" creates it again when it reconciles the Cluster; if it does not, see its log, and check that the "+
			"Cluster is not paused",
	)
}

// fullQuota names a ResourceQuota of the namespace that permits no further Secret; empty: there is none, or it cannot
// be read.
func (v *visit) fullQuota(ctx context.Context) string {
	var quotas corev1.ResourceQuotaList
	if v.Objects.List(ctx, &quotas, client.InNamespace(v.key.Namespace)) != nil {
		return ""
	}
	for i := range quotas.Items {
		q := &quotas.Items[i]
		for _, resource := range []corev1.ResourceName{corev1.ResourceSecrets, "count/secrets"} {
			hard, limited := q.Status.Hard[resource]
			if used := q.Status.Used[resource]; limited && used.Cmp(hard) >= 0 {
				return fmt.Sprintf(
					"ResourceQuota %s of namespace %s allows %s Secrets, and %s exist", q.Name, q.Namespace, hard.String(),
					used.String(),
				)
			}
		}
	}
	return ""
}

// rewrite is the cure for a Secret that another writer has changed.
func (v *visit) rewrite(name string) string {
	return "delete it: kubectl -n " + v.key.Namespace + " delete secret " + name + "; its control-plane provider " +
		"creates it again, and Fairlead points it to the tunnel again"
}

// lastWriter returns the last writer of an object, in brackets.
func lastWriter(o client.Object) string {
	name, at := writers.Last(o)
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" (last written by %s at %s)", name, utc(at))
}

// use stores what later hops require of a kubeconfig. A kubeconfig whose user runs programs or reads files is not used:
// the writer of the Secret would control this machine.
func (v *visit) use(config *clientcmdapi.Config, user *clientcmdapi.AuthInfo, endpoint kubeconfig.Endpoint) {
	v.lead(endpoint)
	if user == nil || user.Exec != nil || user.AuthProvider != nil || user.ClientCertificate != "" ||
		user.ClientKey != "" ||
		user.TokenFile != "" {
		return
	}
	for _, entry := range config.Clusters {
		if entry.CertificateAuthority != "" {
			return
		}
	}
	rest, err := clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err == nil {
		v.config = rest
	}
}
