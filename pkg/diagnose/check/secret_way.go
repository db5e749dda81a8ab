package check

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// compareTarget returns a finding if the kubeconfig does not have the endpoint of the Tunnel; nil: it has.
func (v *visit) compareTarget(ctx context.Context, name string, endpoint kubeconfig.Endpoint) *finding {
	if v.tunnel == nil {
		return nil // that is reported
	}
	record := v.tunnel.Status.Kubeconfig
	ready := apimeta.FindStatusCondition(v.tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == v1alpha1.ReasonNotWritable:
		return v.notWritable(ctx, name, ready.Message)
	case record.Mode != "" && leadsBy(endpoint, record):
		return nil
	case ready != nil && ready.Reason == v1alpha1.ReasonWaitingForTunnel && record.Mode == "":
		f := warning(
			"it still points to "+endpoint.String()+", without the tunnel",
			"the kubeconfig is switched once a reverse tunnel is up and the apiserver behind it is healthy",
			"start an edge: fairlead join -n "+v.key.Namespace+" "+v.key.Name+"; to switch without one, set "+
				"spec.kubeconfig.switch of the Tunnel to immediate",
		)
		return &f
	case ready != nil && ready.Status == metav1.ConditionFalse && (ready.Reason != v1alpha1.ReasonWaitingForSecret ||
		v.secret.Labels["cluster.x-k8s.io/cluster-name"] == ""):
		f := broken(
			"the controller does not write it ("+ready.Reason+"): "+ready.Message, "the message has the reason",
			"correct what the message names",
		)
		return &f
	case record.Mode == "" && v.broken[HopTunnel]:
		return nil // the condition has the reason
	}
	detail := fmt.Sprintf(
		"it points to %s instead of %s", endpoint,
		kubeconfig.Endpoint{Server: record.Server, TLSServerName: record.TLSServerName, ProxyURL: record.ProxyURL},
	)
	cause := "Secret " + name + " was edited" + lastWriter(v.secret)
	down := v.controllerDown(ctx)
	switch {
	case v.paused():
		f := broken(
			detail, cause+", and the Cluster is paused, so the controller does not correct it",
			"unpause the Cluster: the controller corrects the Secret within a few seconds",
		)
		return &f
	case down != "":
		f := broken(detail, cause+", and "+down, v.startController()+": it corrects the Secret within a few seconds")
		return &f
	}
	if denied := v.mayNotPatch(ctx); denied != "" {
		f := broken(detail, cause+", and "+denied, v.reapply())
		return &f
	}
	f := broken(
		detail,
		cause+", and the controller has not corrected it yet",
		"run the check again in a few seconds; if it persists, see the log of the controller: kubectl "+
			"-n "+v.installation()+" logs deployment/controller",
	)
	return &f
}

// leadsBy reports whether an endpoint is the recorded one. Without a record, it is the provider's.
func leadsBy(endpoint kubeconfig.Endpoint, record v1alpha1.KubeconfigStatus) bool {
	server := record.Server == "" || endpoint.Server == record.Server
	name := endpoint.TLSServerName == record.TLSServerName ||
		record.TLSServerName == "" && record.Mode != v1alpha1.KubeconfigModeSNI
	return server && name && kubeconfig.WithoutCredentials(endpoint.ProxyURL) == record.ProxyURL
}

// notWritable distinguishes a controller without permission from an immutable Secret.
func (v *visit) notWritable(ctx context.Context, name, message string) *finding {
	if denied := v.mayNotPatch(ctx); denied != "" {
		f := broken("the controller cannot write Secret "+name, denied, v.reapply())
		return &f
	}
	f := broken(
		message,
		"the Secret is immutable, or an admission policy or webhook denies the controller's writes",
		"allow ServiceAccount controller of namespace "+v.installation()+" to patch it; delete an immutable Secret: its "+
			"control-plane provider creates it again",
	)
	return &f
}

func (v *visit) reapply() string {
	return "apply your installation again, which has ClusterRole and ClusterRoleBinding fairlead-controller"
}

// mayNotPatch describes that the controller may not write kubeconfigs; empty: it may, or that is unknown.
func (v *visit) mayNotPatch(ctx context.Context) string {
	if v.Asks == nil {
		return ""
	}
	for _, verb := range []string{"get", "patch"} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + v.installation() + ":controller",
			Groups: []string{
				"system:serviceaccounts",
				"system:serviceaccounts:" + v.installation(),
				"system:authenticated",
			},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: v.key.Namespace, Verb: verb, Resource: "secrets"},
		}}
		if err := v.Asks.Create(ctx, review); err == nil && !review.Status.Allowed {
			return fmt.Sprintf(
				"its ServiceAccount %s may not %s Secrets in namespace %s (RBAC)", "controller", verb, v.key.Namespace,
			)
		}
	}
	return ""
}
