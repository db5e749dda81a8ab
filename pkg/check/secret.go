package check

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// lookKubeconfig looks at the Secret that Cluster API's controllers read: whether it is there, leads where the Tunnel says, trusts the
// workload cluster's CA, and has credentials that are valid.
func lookKubeconfig(ctx context.Context, v *visit) finding {
	if v.cluster == nil {
		return skipped("there is no Cluster to look at")
	}
	name := v.key.Name + kubeconfig.Suffix
	cure := "run fairlead check with a user who may read Secrets in namespace " + v.key.Namespace
	if v.Secrets == nil {
		return unknown("Secrets can't be read from here", cure)
	}
	secret := &corev1.Secret{}
	switch err := v.Secrets.Get(ctx, client.ObjectKey{Namespace: v.key.Namespace, Name: name}, secret); {
	case apierrors.IsForbidden(err):
		return unknown("the user of this command may not read Secret "+name, cure)
	case apierrors.IsNotFound(err):
		return v.noSecret(ctx, name)
	case err != nil:
		return unknown("Secret "+name+" can't be read: "+text(err), "try again")
	}
	v.secret = secret
	config, entry, err := kubeconfig.Load(secret, v.key.Name)
	if err != nil {
		return broken("Secret "+name+": "+err.Error(), "somebody has written something else into it"+lastWriter(secret), v.rewrite(name))
	}
	way, err := kubeconfig.Read(secret, v.key.Name)
	if err != nil {
		return broken("Secret "+name+": "+err.Error(), "somebody has written something else into it"+lastWriter(secret), v.rewrite(name))
	}
	user := userOf(config)
	v.use(config, user, way)
	for _, look := range []func() *finding{
		func() *finding { return v.compareWay(ctx, name, way) },
		func() *finding { return v.compareCA(ctx, name, entry) },
		func() *finding { return v.compareUser(name, user) },
	} {
		if f := look(); f != nil {
			return *f
		}
	}
	return ok("it leads to %s%s", way, until(user, v.now()))
}

// noSecret says what it means that there is no kubeconfig.
func (v *visit) noSecret(ctx context.Context, name string) finding {
	detail := "there is no Secret " + name
	if full := v.fullQuota(ctx); full != "" {
		return broken(detail, full+", so its provider can't write it", "raise the quota: kubectl -n "+v.key.Namespace+" edit resourcequota; the provider writes the Secret when it tries again")
	}
	provider := "the control-plane provider"
	if kind := v.cluster.Spec.ControlPlaneRef.Kind; kind != "" {
		provider += " (" + kind + ")"
	}
	return broken(detail, provider+" has not written it yet, or somebody has deleted it",
		provider+" writes it anew when it next looks at the Cluster: see its log if it does not, and whether the Cluster is paused")
}

// fullQuota names a ResourceQuota of the namespace that allows no further Secret; empty: there is none, or it can't be read.
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
				return fmt.Sprintf("ResourceQuota %s of namespace %s allows %s Secrets, and there are %s", q.Name, q.Namespace, hard.String(), used.String())
			}
		}
	}
	return ""
}

// rewrite is how a Secret comes right that somebody has spoilt.
func (v *visit) rewrite(name string) string {
	return "delete it: kubectl -n " + v.key.Namespace + " delete secret " + name + "; its control-plane provider writes it anew, and Fairlead lets it lead through the tunnel again"
}

// lastWriter names who wrote an object last, as far as its managed fields say.
func lastWriter(o client.Object) string {
	var last metav1.ManagedFieldsEntry
	for _, f := range o.GetManagedFields() {
		if f.Time != nil && (last.Time == nil || last.Time.Before(f.Time)) {
			last = f
		}
	}
	if last.Time == nil {
		return ""
	}
	return fmt.Sprintf(" (written last by %s at %s)", last.Manager, utc(last.Time.Time))
}

// compareWay says whether the kubeconfig leads where the Tunnel says; nil: it does.
func (v *visit) compareWay(ctx context.Context, name string, way kubeconfig.Way) *finding {
	if v.tunnel == nil {
		return nil // that is said
	}
	record := v.tunnel.Status.Kubeconfig
	ready := apimeta.FindStatusCondition(v.tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == v1alpha1.ReasonNotWritable:
		return v.notWritable(ctx, name, ready.Message)
	case record.Mode != "" && leadsBy(way, record):
		return nil
	case ready != nil && ready.Status == metav1.ConditionFalse && (ready.Reason != v1alpha1.ReasonWaitingForSecret || v.secret.Labels["cluster.x-k8s.io/cluster-name"] == ""):
		f := broken("the controller does not write it ("+ready.Reason+"): "+ready.Message, "see the message", "do what the message says")
		return &f
	case record.Mode == "" && v.broken[HopTunnel]:
		return nil // the reason is there
	}
	detail := fmt.Sprintf("it leads to %s, and should lead to %s", way, kubeconfig.Way{Server: record.Server, TLSServerName: record.TLSServerName, ProxyURL: record.ProxyURL})
	cause := "somebody has edited Secret " + name + lastWriter(v.secret)
	down := v.controllerDown(ctx)
	switch {
	case v.paused():
		f := broken(detail, cause+", and the Cluster is paused, so nobody puts it right", "unpause the Cluster: the controller writes the Secret again within some seconds")
		return &f
	case down != "":
		f := broken(detail, cause+", and "+down, v.startController()+": it writes the Secret again within some seconds")
		return &f
	}
	if denied := v.mayNotPatch(ctx); denied != "" {
		f := broken(detail, cause+", and "+denied, v.reapply())
		return &f
	}
	f := broken(detail, cause+", and the controller has not put it right yet", "look again in some seconds; if it stays, the log of the controller says why: kubectl -n "+v.installation()+" logs deployment/controller")
	return &f
}

// leadsBy says whether a way is the one on record. What is not on record is the provider's.
func leadsBy(way kubeconfig.Way, record v1alpha1.KubeconfigStatus) bool {
	server := record.Server == "" || way.Server == record.Server
	name := way.TLSServerName == record.TLSServerName || record.TLSServerName == "" && record.Mode != v1alpha1.KubeconfigModeSNI
	return server && name && kubeconfig.WithoutCredentials(way.ProxyURL) == record.ProxyURL
}

// notWritable tells a controller without permission from a Secret that nobody may change.
func (v *visit) notWritable(ctx context.Context, name, message string) *finding {
	if denied := v.mayNotPatch(ctx); denied != "" {
		f := broken("the controller can't write Secret "+name, denied, v.reapply())
		return &f
	}
	f := broken(message, "the Secret is immutable, or an admission policy or webhook refuses what the controller writes",
		"let ServiceAccount controller of namespace "+v.installation()+" patch it; one that is immutable has to be deleted, and its provider writes it anew")
	return &f
}

func (v *visit) reapply() string {
	return "apply the permissions of deploy/kubernetes again: ClusterRole and ClusterRoleBinding fairlead-controller; the controller tries again by itself"
}

// mayNotPatch says that the controller may not write kubeconfigs; empty: it may, or that can't be asked.
func (v *visit) mayNotPatch(ctx context.Context) string {
	if v.Asks == nil {
		return ""
	}
	for _, verb := range []string{"get", "patch"} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + v.installation() + ":controller",
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + v.installation(), "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: v.key.Namespace, Verb: verb, Resource: "secrets"},
		}}
		if err := v.Asks.Create(ctx, review); err == nil && !review.Status.Allowed {
			return fmt.Sprintf("its ServiceAccount %s may not %s Secrets in namespace %s (RBAC)", "controller", verb, v.key.Namespace)
		}
	}
	return ""
}

// compareCA says whether the kubeconfig trusts another CA than the Cluster's; nil: the same, or nobody knows.
func (v *visit) compareCA(ctx context.Context, name string, entry *clientcmdapi.Cluster) *finding {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: v.key.Namespace, Name: v.key.Name + "-ca"}
	if entry.InsecureSkipTLSVerify || v.Secrets.Get(ctx, key, secret) != nil {
		return nil
	}
	want, have := certificatesOf(secret.Data[corev1.TLSCertKey]), certificatesOf(entry.CertificateAuthorityData)
	for _, w := range want {
		for _, h := range have {
			if bytes.Equal(w.Raw, h.Raw) {
				return nil
			}
		}
	}
	if len(want) == 0 {
		return nil
	}
	f := broken("its CA is not the one in Secret "+key.Name, "somebody has put another CA into Secret "+name+lastWriter(v.secret)+", or has replaced the Cluster's CA", v.rewrite(name))
	return &f
}

// certificatesOf are the certificates in a PEM file; what is none is left out.
func certificatesOf(data []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// userOf is the user of a kubeconfig's current context; nil: there is none.
func userOf(config *clientcmdapi.Config) *clientcmdapi.AuthInfo {
	if current := config.Contexts[config.CurrentContext]; current != nil {
		return config.AuthInfos[current.AuthInfo]
	}
	return nil
}

// compareUser looks at the client certificate; nil: it is valid, or there is none.
func (v *visit) compareUser(name string, user *clientcmdapi.AuthInfo) *finding {
	if user == nil {
		f := broken("its current context names no user", "somebody has edited Secret "+name+lastWriter(v.secret), v.rewrite(name))
		return &f
	}
	leaves := certificatesOf(user.ClientCertificateData)
	if len(leaves) == 0 {
		return nil
	}
	leaf, now := leaves[0], v.now()
	renew := "its control-plane provider renews it; at once, when the Secret is deleted: kubectl -n " + v.key.Namespace + " delete secret " + name
	switch {
	case now.After(leaf.NotAfter):
		f := broken("its client certificate ended at "+utc(leaf.NotAfter), "nobody has renewed it: the control-plane provider does not run, or the Cluster is paused, or the clock of this machine is wrong", renew)
		return &f
	case now.Before(leaf.NotBefore):
		f := broken("its client certificate begins at "+utc(leaf.NotBefore)+", and the clock here says "+utc(now), "the clock of this machine is late", "put the clock right")
		return &f
	case leaf.NotAfter.Sub(now) < leaf.NotAfter.Sub(leaf.NotBefore)/10:
		f := warning("its client certificate ends at "+utc(leaf.NotAfter), "nobody has renewed it yet", renew)
		return &f
	}
	return nil
}

// until says how long the client certificate is good.
func until(user *clientcmdapi.AuthInfo, now time.Time) string {
	if leaves := certificatesOf(user.ClientCertificateData); len(leaves) > 0 {
		return fmt.Sprintf("; its client certificate is valid for %s", leaves[0].NotAfter.Sub(now).Round(time.Minute))
	}
	return ""
}

// use keeps what later hops need of a kubeconfig. One whose user runs programs or reads files is not used: whoever writes the Secret
// would decide what happens on this machine.
func (v *visit) use(config *clientcmdapi.Config, user *clientcmdapi.AuthInfo, way kubeconfig.Way) {
	v.lead(way)
	if user == nil || user.Exec != nil || user.AuthProvider != nil || user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "" {
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
