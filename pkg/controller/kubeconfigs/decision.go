package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

// decision is the result for one kubeconfig.
type decision struct {
	leads      bool                // write our endpoint; otherwise restore the original
	stays      bool                // keep the record, and the Secret unless leads is set
	target     kubeconfig.Decision // complete if leads; otherwise only what restoring requires
	record     v1alpha1.KubeconfigStatus
	refused    *metav1.Condition // why it does not lead: KubeconfigReady
	conditions []metav1.Condition
	again      time.Duration
}

// add adds a condition.
func (v *decision) add(c metav1.Condition) { v.conditions = append(v.conditions, c) }

// drop removes a condition.
func (v *decision) drop(kind string) { apimeta.RemoveStatusCondition(&v.conditions, kind) }

// kubeconfigConditions lists the conditions of this controller. Each that a decision does not contain is removed,
// except KubeconfigReady, which is set last.
var kubeconfigConditions = []string{
	v1alpha1.ConditionKubeconfigMode, v1alpha1.ConditionHostnameResolves, v1alpha1.ConditionKubeconfigSwitched,
}

// absent returns the conditions that do not apply.
func (v *decision) absent() []string {
	if v.stays {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(kubeconfigConditions), func(kind string) bool {
		return apimeta.FindStatusCondition(v.conditions, kind) != nil
	})
}

// decide decides what becomes of a kubeconfig.
func (r *Reconciler) decide(ctx context.Context, o objects.Group) (decision, error) {
	v := decision{target: restorable(r.Config, o), again: requeueAfter()}
	spec := o.Tunnel.Spec.Kubeconfig
	var credentials *kubeconfig.Credentials
	switch {
	case !spec.Mode.Tunnelled():
		reason, problem := kubeconfig.Validate(spec)
		if problem == nil && spec.Proxy != nil && spec.Proxy.CredentialsSecret != "" {
			var err error
			if credentials, problem, err = r.credentials(ctx, o.Key.Namespace, spec.Proxy.CredentialsSecret); err != nil {
				return v, err
			}
			if problem != nil && leadsByProxy(o) {
				v.keep(reason, problem.Error()+". The kubeconfig keeps using this proxy until then")
				return v, nil
			}
		}
		if problem != nil {
			v.refuse(reason, problem.Error())
			return v, nil
		}
	case o.Tunnel.Status.Hostname == "":
		v.refuse(v1alpha1.ReasonNotAccepted, "the Tunnel is not accepted, so the kubeconfig has its original server")
		return v, nil
	case keepsMode(o):
		v.keepMode(o, r.Config.Gateways())
		return v, nil
	case keepsOriginal(o, v.target):
		v.refuse(v1alpha1.ReasonWaitingForTunnel, "the kubeconfig keeps its original server until a reverse tunnel is up "+
			"and the apiserver behind it is healthy: start an edge, or set spec.kubeconfig.switch to immediate")
		return v, nil
	}
	choice, err := r.choose(ctx, o)
	if err != nil {
		return v, err
	}
	v.record = kubeconfig.StatusOf(spec, choice, r.Config.Gateways(), r.resolves(ctx, &v, o, choice))
	v.addMode(o, choice)
	on := o.Tunnel.DeepCopy()
	on.Status.Kubeconfig = v.record
	decision, leads := kubeconfig.FromTunnel(on, r.Config.Gateways(), credentials)
	if !leads {
		return v, fmt.Errorf("deciding kubeconfig of %s: mode %s is unknown", o.Key, choice.Mode)
	}
	decision.Endpoint = endpointOf(o)
	v.leads, v.target = true, decision
	if choice.Mode == v1alpha1.KubeconfigModeHTTPSProxy {
		return v, r.checkProxy(ctx, &v, o)
	}
	return v, nil
}

// keepsOriginal reports whether a kubeconfig that never led through the tunnel must wait until the tunnel is usable.
// The status of a Tunnel is lost when its Cluster moves to another management cluster, so a Secret that leads through
// a tunnel already does not wait.
func keepsOriginal(o objects.Group, target kubeconfig.Decision) bool {
	if o.Tunnel.Status.Kubeconfig.Mode != "" || usable(o.Tunnel) {
		return false
	}
	initialized := ptr.Deref(o.Cluster.Status.Initialization.ControlPlaneInitialized, false)
	switch when := o.Tunnel.Spec.Kubeconfig.Switch; {
	case when == v1alpha1.KubeconfigSwitchImmediate, when != v1alpha1.KubeconfigSwitchWhenReady && !initialized:
		return false
	case o.Kubeconfig == nil: // what is recorded now would apply to the Secret that its provider writes next
		return true
	}
	rewritten, err := kubeconfig.Restore(o.Kubeconfig.DeepCopy(), o.Key.Name, target)
	return err == nil && !rewritten
}

// keepsMode reports whether a kubeconfig that leads by a proxy or an address of the user must wait until the tunnel is
// usable, through which the Tunnel now sends it.
func keepsMode(o objects.Group) bool {
	before, when := o.Tunnel.Status.Kubeconfig.Mode, o.Tunnel.Spec.Kubeconfig.Switch
	if before == "" || before.Tunnelled() || usable(o.Tunnel) || when == v1alpha1.KubeconfigSwitchImmediate {
		return false
	}
	initialized := ptr.Deref(o.Cluster.Status.Initialization.ControlPlaneInitialized, false)
	return when == v1alpha1.KubeconfigSwitchWhenReady || initialized
}

// usable reports whether clients reach the apiserver through the tunnel.
func usable(tunnel *v1alpha1.Tunnel) bool {
	return apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionTunnelReady) &&
		apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionAPIServerReachable)
}

// refuse restores the original kubeconfig.
func (v *decision) refuse(reason, message string) {
	v.leads, v.record, v.conditions = false, v1alpha1.KubeconfigStatus{}, nil
	v.refused = &metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigReady, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}
}

// keep keeps the kubeconfig as it is.
func (v *decision) keep(reason, message string) {
	v.refuse(reason, message)
	v.stays = true
}

// keepMode keeps the proxy or the address on record, and writes it again if the provider has replaced it. Nothing is
// written if the proxy needs credentials and the Secret has lost them: the Tunnel names the Secret with them no more.
func (v *decision) keepMode(o objects.Group, gateways kubeconfig.Gateways) {
	mode := o.Tunnel.Status.Kubeconfig.Mode
	message := fmt.Sprintf("the kubeconfig keeps the mode %s until a reverse tunnel is up and the apiserver behind it is "+
		"healthy: start an edge, or set spec.kubeconfig.switch to immediate", mode)
	recorded, complete := kubeconfig.FromTunnelAndSecrets(o.Tunnel, gateways, o.Key.Name, o.Kubeconfig)
	if !complete {
		message += fmt.Sprintf(". The kubeconfig was replaced, and the credentials of the proxy are lost: set "+
			"spec.kubeconfig.mode to %s again, with spec.kubeconfig.proxy.credentialsSecret, until then", mode)
	}
	v.keep(v1alpha1.ReasonWaitingForTunnel, message)
	if complete {
		recorded.Endpoint = endpointOf(o)
		v.leads, v.target = true, recorded
	}
}

// credentials reads the credentials of a proxy from the apiserver, so that they are never cached.
func (r *Reconciler) credentials(
	ctx context.Context, namespace, name string,
) (c *kubeconfig.Credentials, problem *model.FieldError, err error) {
	secret, err := objects.Get(ctx, r.Live, client.ObjectKey{Namespace: namespace, Name: name}, &corev1.Secret{})
	if err != nil {
		return nil, nil, objects.Wrap("reading credentials of the proxy", err)
	}
	c, problem = kubeconfig.ReadCredentials(name, secret)
	return c, problem, nil
}

// leadsByProxy reports whether a kubeconfig uses the proxy that its Tunnel names. If so, it stays while the credentials
// are missing or unusable: they may arrive with the next object of a move, or contain a typing error, and without the
// proxy no client may reach the apiserver.
func leadsByProxy(o objects.Group) bool {
	if o.Kubeconfig == nil {
		return false
	}
	endpoint, err := kubeconfig.Read(o.Kubeconfig, o.Key.Name)
	return err == nil && kubeconfig.ByProxy(endpoint, o.Tunnel.Spec.Kubeconfig)
}

// choose chooses a mode from everything that is known about the Cluster.
func (r *Reconciler) choose(ctx context.Context, o objects.Group) (kubeconfig.Choice, error) {
	spec, status := o.Tunnel.Spec, o.Tunnel.Status
	e := kubeconfig.Evidence{
		Mode: spec.Kubeconfig.Mode, Hostname: status.Hostname, Before: status.Kubeconfig,
		Certificates: records.CertificateNames(status.Edges, r.Now()),
	}
	for _, name := range spec.ExtraNames {
		if slices.Contains(status.Names, name) {
			e.Names = append(e.Names, name)
		}
	}
	host := reconciler.CanonicalHost(o.Cluster)
	if model.ValidateDNSName(host) != nil || r.Config.Domain.Contains(host) {
		return kubeconfig.Choose(e), nil
	}
	e.Endpoint, e.EndpointServed = host, slices.Contains(status.Names, host)
	if !e.EndpointServed {
		var err error
		if e.EndpointHolder, err = r.holder(ctx, o.Key, host); err != nil {
			return kubeconfig.Choice{}, err
		}
	}
	return kubeconfig.Choose(e), nil
}

// holder describes the other holder of an endpoint's name: a Tunnel that is served by it, or another Cluster, with or
// without a Tunnel. It returns an empty string if there is none.
func (r *Reconciler) holder(ctx context.Context, key client.ObjectKey, host string) (string, error) {
	if other, held := r.names.Holder(host); held && other != model.Key(key) {
		return "the Tunnel " + other.String(), nil
	}
	var all clusterv1.ClusterList
	if err := r.Client.List(ctx, &all, client.MatchingFields{reconciler.EndpointIndex: host}); err != nil {
		return "", objects.Wrap("listing Clusters of an endpoint", err)
	}
	for i := range all.Items {
		if other := client.ObjectKeyFromObject(&all.Items[i]); other != key {
			return "the Cluster " + other.String(), nil
		}
	}
	return "", nil
}

// addMode adds the condition that states which mode was chosen and why. Without news it keeps the previous condition.
func (v *decision) addMode(o objects.Group, choice kubeconfig.Choice) {
	c := metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigMode, Status: metav1.ConditionTrue, Reason: choice.Reason, Message: choice.Message,
	}
	if choice.Reason == "" {
		c.Reason, c.Message = v1alpha1.ReasonNoEvidence, fmt.Sprintf(
			"%s: it was chosen before, and no edge observes the serving certificate now", choice.Mode,
		)
		if was := apimeta.FindStatusCondition(o.Tunnel.Status.Conditions, c.Type); was != nil &&
			was.Reason != v1alpha1.ReasonConfigured {
			c.Reason, c.Message = was.Reason, was.Message
		}
	}
	v.add(c)
}

// resolves reports whether clients reach the gateways by the chosen name, and adds the condition about the tunnel
// hostname. Without an answer the recorded condition stays.
func (r *Reconciler) resolves(ctx context.Context, v *decision, o objects.Group, choice kubeconfig.Choice) bool {
	if choice.Mode != v1alpha1.KubeconfigModeSNI {
		return false
	}
	ask := r.resolver.resolves
	if choice.Name != o.Tunnel.Status.Hostname {
		ask = func(ctx context.Context, name, gateway string) answer {
			// The setting about tunnel hostnames does not apply to other names.
			return r.resolver.leadsTo(ctx, o.Key.Namespace, name, gateway)
		}
	}
	answer := ask(ctx, choice.Name, r.Config.APIServer.Host)
	before := o.Tunnel.Status.Kubeconfig
	c := metav1.Condition{Type: v1alpha1.ConditionHostnameResolves}
	switch answer {
	case yes:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonResolves
		c.Message = choice.Name + " resolves to the gateways, and the kubeconfig names it"
	case no:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonDoesNotResolve
		c.Message = fmt.Sprintf(
			"%s does not resolve to the gateways here, so the kubeconfig names the gateways, with the name as tls-server-name",
			choice.Name,
		)
	default:
		v.again = min(v.again, lookupPause+rand.N(lookupPause))
		c = condition.Unknown(c.Type, "DNS does not answer; the kubeconfig stays as it is")
		if was := apimeta.FindStatusCondition(o.Tunnel.Status.Conditions, c.Type); was != nil {
			c = *was
		}
	}
	v.add(c)
	stays := before.Mode == choice.Mode && before.TLSServerName == "" && kubeconfig.NameOf(before) == choice.Name
	return answer == yes || (answer == unknown && stays)
}

// write returns the Secret as it must be, or nil if it is so already, and its resulting endpoint. On an error, which is
// kubeconfig.ErrInvalid, the Secret stays.
func (v *decision) write(o objects.Group) (want *corev1.Secret, leads kubeconfig.Endpoint, err error) {
	if o.Kubeconfig == nil || (v.stays && !v.leads) {
		return nil, kubeconfig.Endpoint{}, nil
	}
	want = o.Kubeconfig.DeepCopy()
	do := kubeconfig.Apply
	if !v.leads {
		do = kubeconfig.Restore
	}
	changed, err := do(want, o.Key.Name, v.target)
	if err != nil {
		return nil, kubeconfig.Endpoint{}, err
	}
	if leads, err = kubeconfig.Read(want, o.Key.Name); err != nil {
		return nil, kubeconfig.Endpoint{}, err
	}
	if !changed {
		want = nil
	}
	return want, leads, nil
}

// readyCondition returns the condition that states the endpoint of the kubeconfig. err is the result of writing it.
func (v *decision) readyCondition(o objects.Group, leads kubeconfig.Endpoint, err error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionKubeconfigReady, Status: metav1.ConditionFalse}
	switch {
	case o.Kubeconfig == nil:
		c.Reason, c.Message = v1alpha1.ReasonWaitingForSecret, waitingForSecret(o)
	case errors.Is(err, kubeconfig.ErrInvalid):
		c.Reason, c.Message = v1alpha1.ReasonInvalidKubeconfig, err.Error()
	case errors.Is(err, errNotWritable):
		c.Reason = v1alpha1.ReasonNotWritable
		c.Message = fmt.Sprintf("cannot change Secret %s: it is immutable, or an admission policy or webhook denies "+
			"the write, so the kubeconfig stays as it is: "+
			"let the controller patch it, or delete an immutable one: its control-plane provider writes it again",
			o.Key.Name+kubeconfig.Suffix)
	case v.refused != nil:
		return *v.refused
	case v.record.Mode.Tunnelled():
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonRewritten, "the kubeconfig leads through the "+
			"tunnel by "+leads.String()
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonRewritten, "the kubeconfig leads by "+
			leads.String()
	}
	return c
}

func waitingForSecret(o objects.Group) string {
	return fmt.Sprintf(
		"Secret %s with the label cluster.x-k8s.io/cluster-name not found: waiting for the control-plane provider",
		o.Key.Name+kubeconfig.Suffix,
	)
}
