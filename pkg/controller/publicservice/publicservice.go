// Package publicservice creates the Service by which edges reach the gateways, and reports whether its name resolves.
// Its input is the form of the Service, as the installation sets it, and the public address. Its output is the Service
// with one condition. It does not know how a load balancer gets its address.
//
// The controller creates this Service, and not the program that installs Fairlead, because an installer that waits for
// its objects would wait for the load balancer as well.
package publicservice

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

const (
	// owner is a Service of every installation. Kubernetes deletes the public Service together with it.
	owner = "gateway"
	// gatewayLabel is the value of the label app.kubernetes.io/name of the gateways' Pods.
	gatewayLabel = "gateway"
	fieldOwner   = "fairlead-controller"

	// interval repairs a Service that was deleted or changed, and follows a load balancer and the DNS. A user who has just
	// created the record waits for it.
	interval    = 10 * time.Second
	lookupTime  = 5 * time.Second
	reconcileIn = 30 * time.Second
)

// settings is the form of the Service that an installation sets.
type settings struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec *corev1ac.ServiceSpecApplyConfiguration `json:"spec"`
}

// parse reads settings. It rejects unknown fields, and the fields that the controller sets.
func parse(text string) (settings, error) {
	var s settings
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		return s, fmt.Errorf("reading the form of the Service %s: %w", v1alpha1.PublicServiceName, err)
	}
	if s.Spec == nil {
		s.Spec = corev1ac.ServiceSpec()
	}
	if len(s.Spec.Selector) > 0 {
		return s, fmt.Errorf("the form of the Service %s has a selector: the controller sets it", v1alpha1.PublicServiceName)
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.Port == nil || p.Name == nil || *p.Name != "public" || len(s.Spec.Ports) > 1 {
			return s, fmt.Errorf("the form of the Service %s has a port that is not public", v1alpha1.PublicServiceName)
		}
	}
	return s, nil
}

// Keeper keeps the Service as it is set.
type Keeper struct {
	deps     reconciler.Deps
	settings settings
	lookup   func(ctx context.Context, host string) error
	reasons  retry.Reasons
}

// New returns a Keeper, or an error if the form of the Service in the configuration is invalid.
func New(deps reconciler.Deps) (*Keeper, error) {
	s, err := parse(deps.Config.PublicService)
	if err != nil {
		return nil, err
	}
	return &Keeper{deps: deps, settings: s, lookup: lookup}, nil
}

// Setup adds the Keeper to a manager. Only the leader runs it.
func (k *Keeper) Setup(mgr ctrl.Manager) error { return mgr.Add(reconciler.Leading{Run: k.run}) }

// run reconciles until ctx ends.
func (k *Keeper) run(ctx context.Context) error {
	wait := retry.Backoff{Min: interval, Max: interval} // shortened at random, so that replicas differ
	for {
		if err := k.reconcile(ctx); err != nil && ctx.Err() == nil && k.reasons.New(err) {
			k.deps.Log.Error("cannot keep public Service", "service", v1alpha1.PublicServiceName, "error", err)
		}
		if retry.Sleep(ctx, wait.Wait(0)) != nil {
			return nil
		}
	}
}

// reconcile writes the Service and its condition, if they differ from what they should be.
func (k *Keeper) reconcile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileIn)
	defer cancel()
	namespace := k.deps.Config.Namespace
	var clients, service corev1.Service
	if err := k.deps.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner}, &clients); err != nil {
		return fmt.Errorf("reading Service %s: %w", owner, err)
	}
	if err := k.deps.Client.Apply(
		ctx, k.desired(&clients), client.FieldOwner(fieldOwner), client.ForceOwnership,
	); err != nil {
		return fmt.Errorf("applying Service %s: %w", v1alpha1.PublicServiceName, err)
	}
	key := client.ObjectKey{Namespace: namespace, Name: v1alpha1.PublicServiceName}
	if err := k.deps.Live.Get(ctx, key, &service); err != nil {
		return fmt.Errorf("reading Service %s: %w", v1alpha1.PublicServiceName, err)
	}
	return k.report(ctx, &service)
}

// desired returns the Service. Its selector and its port are the gateways'.
func (k *Keeper) desired(clients *corev1.Service) *corev1ac.ServiceApplyConfiguration {
	spec := *k.settings.Spec
	port := corev1ac.ServicePort().WithPort(443)
	if len(spec.Ports) == 1 {
		copied := spec.Ports[0]
		port = &copied
	}
	spec.Ports = []corev1ac.ServicePortApplyConfiguration{
		*port.WithName("public").WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromString("public")),
	}
	spec.Selector = map[string]string{"app.kubernetes.io/name": gatewayLabel}
	return corev1ac.Service(v1alpha1.PublicServiceName, k.deps.Config.Namespace).
		WithLabels(k.settings.Metadata.Labels).WithAnnotations(k.settings.Metadata.Annotations).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion("v1").WithKind("Service").WithName(clients.Name).WithUID(clients.UID)).
		WithSpec(&spec)
}

// report writes the condition of the public address, if it changes.
func (k *Keeper) report(ctx context.Context, service *corev1.Service) error {
	host := k.deps.Config.Public.Host
	c := metav1.Condition{
		Type: v1alpha1.ServiceConditionPublicAddress, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonPublicAddressResolves, Message: host + " resolves", ObservedGeneration: service.Generation,
	}
	if _, err := netip.ParseAddr(host); err == nil {
		c.Message = host + " is an address"
	} else if err := k.resolve(ctx, host); err != nil {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonPublicAddressPending
		c.Message = host + " does not resolve (" + reason(err) + "): " + cure(service)
	}
	all := append([]metav1.Condition(nil), service.Status.Conditions...)
	if !apimeta.SetStatusCondition(&all, c) {
		return nil
	}
	k.deps.Log.Info("public address", "host", host, "reason", c.Reason)
	c = *apimeta.FindStatusCondition(all, c.Type)
	return condition.Apply(
		ctx, k.deps.Client, corev1.SchemeGroupVersion.WithKind("Service"), service, []metav1.Condition{c},
	)
}

func (k *Keeper) resolve(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	return k.lookup(ctx, host)
}

func lookup(ctx context.Context, host string) error {
	_, err := net.DefaultResolver.LookupHost(ctx, host)
	return err
}

// reason is the text of a DNS error without the name and the address of the resolver, which may change each time.
func reason(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	return err.Error()
}

// cure is what a user does about an address that does not resolve.
func cure(service *corev1.Service) string {
	var targets []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if target := ingress.IP + ingress.Hostname; target != "" {
			targets = append(targets, target)
		}
	}
	switch {
	case len(targets) > 0:
		return "create its DNS record with the target " + strings.Join(targets, ", ")
	case service.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "the load balancer has no address yet; create the DNS record when it has"
	}
	return "create its DNS record"
}
