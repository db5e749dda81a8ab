package publicservice

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	namespace = "fairlead-system"
	host      = "gateway.tunnels.example.com"
)

// form returns the form of the Service that users install.
func form(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/kubernetes/settings.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var settings corev1.ConfigMap
	if err := yaml.Unmarshal(data, &settings); err != nil {
		t.Fatal(err)
	}
	return settings.Data["PUBLIC_SERVICE"]
}

// newKeeper returns a Keeper with the permissions of the controller. No name resolves.
func newKeeper(t *testing.T, form string) *Keeper {
	t.Helper()
	api := controllertest.ClientOf(t, "system:serviceaccount:"+namespace+":controller")
	config := controllertest.Config()
	config.Namespace, config.PublicService, config.Public = namespace, form, model.Endpoint{Host: host, Port: 443}
	k, err := New(reconciler.Deps{Config: config, Client: api, Live: api, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	k.lookup = func(context.Context, string) error {
		return &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.53:53", IsNotFound: true}
	}
	return k
}

// reconcile reconciles once, and returns the Service and its condition.
func reconcile(t *testing.T, k *Keeper) (*corev1.Service, *metav1.Condition) {
	t.Helper()
	if err := k.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	service := controllertest.Read(t, controllertest.APIServer(t), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.PublicServiceName},
	})
	c := apimeta.FindStatusCondition(service.Status.Conditions, v1alpha1.ServiceConditionPublicAddress)
	if c == nil {
		t.Fatal("the Service has no condition")
	}
	return service, c
}

// TestTheServiceIsCreatedAndKept uses a real kube-apiserver and the permissions of deploy/kubernetes.
func TestTheServiceIsCreatedAndKept(t *testing.T) {
	admin := controllertest.APIServer(t)
	k := newKeeper(t, form(t))
	if err := k.reconcile(t.Context()); !apierrors.IsNotFound(err) {
		t.Fatalf("without the Service for clients: %v", err)
	}
	clients := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: owner},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 6443}}},
	}
	controllertest.Create(t, admin, clients)
	service, c := reconcile(t, k)
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal ||
		service.Spec.Selector["app.kubernetes.io/name"] != "gateway" || len(service.Spec.Ports) != 1 ||
		service.Spec.Ports[0].Port != 443 || service.Spec.Ports[0].TargetPort.StrVal != "public" {
		t.Errorf("the Service is %+v", service.Spec)
	}
	if o := service.OwnerReferences; len(o) != 1 || o[0].UID != clients.UID {
		t.Errorf("its owners are %+v", o)
	}
	if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonPublicAddressPending ||
		!strings.Contains(c.Message, "no such host") || !strings.Contains(c.Message, "no address yet") {
		t.Errorf("the condition is %+v", c)
	}
	if again, _ := reconcile(t, k); again.ResourceVersion != service.ResourceVersion {
		t.Error("a second reconciliation has written")
	}

	// What others set stays, and what the installation sets comes back.
	controllertest.Edit(t, admin, service, func(s *corev1.Service) {
		s.Annotations = map[string]string{"mine": "stays"}
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	})
	if service, _ = reconcile(t, k); service.Annotations["mine"] != "stays" ||
		service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("the Service is %+v", service)
	}
	if err := admin.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	created, _ := reconcile(t, k)
	if created.UID == service.UID {
		t.Error("the Service was not created again")
	}
	followsTheAddress(t, admin, k, created)

	// Users without a load balancer change the form to the documented one.
	service, _ = reconcile(t, newKeeper(t, documentedForm(t)))
	if service.Spec.Type != corev1.ServiceTypeNodePort || len(service.Spec.Ports) != 1 ||
		service.Spec.Ports[0].NodePort != 30443 || service.Spec.Ports[0].TargetPort.StrVal != "public" {
		t.Errorf("the Service is %+v", service.Spec)
	}
}

// documentedForm returns the form of the Service with a fixed port of the nodes in docs/install-bare-metal.md.
func documentedForm(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/install-bare-metal.md")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		var values struct{ Controller struct{ Args []string } }
		if yaml.Unmarshal([]byte(block), &values) != nil {
			continue // text
		}
		for _, arg := range values.Controller.Args {
			if form, ok := strings.CutPrefix(arg, "--public-service="); ok {
				return form
			}
		}
	}
	t.Fatal("the page has no such form")
	return ""
}

// followsTheAddress: the condition names the target of the DNS record, and ends when the name resolves.
func followsTheAddress(t *testing.T, admin client.Client, k *Keeper, service *corev1.Service) {
	t.Helper()
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}, {Hostname: "lb.example.com"}}
	if err := admin.Status().Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	service, c := reconcile(t, k)
	if c.Reason != v1alpha1.ReasonPublicAddressPending || !strings.Contains(c.Message, "203.0.113.7, lb.example.com") {
		t.Errorf("the condition is %+v", c)
	}
	if len(service.Status.LoadBalancer.Ingress) != 2 {
		t.Errorf("the addresses of the load balancer are lost: %+v", service.Status)
	}
	k.lookup = func(_ context.Context, got string) error {
		if got != host {
			t.Errorf("it resolves %s", got)
		}
		return nil
	}
	if _, c = reconcile(t, k); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonPublicAddressResolves {
		t.Errorf("the condition is %+v", c)
	}
	k.deps.Config.Public.Host = "2001:db8::7"
	k.lookup = func(context.Context, string) error {
		t.Error("an address is resolved")
		return nil
	}
	if _, c = reconcile(t, k); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "is an address") {
		t.Errorf("the condition is %+v", c)
	}
}

func TestFormsOfTheService(t *testing.T) {
	for name, tc := range map[string]struct{ form, wantErr string }{
		"the one of the manifests": {form: form(t)},
		"a class and annotations": {
			form: "{metadata: {annotations: {a: b}}, spec: {loadBalancerClass: c, loadBalancerSourceRanges: [192.0.2.0/24]}}",
		},
		"a port of the node":  {form: "{spec: {type: NodePort, ports: [{name: public, port: 443, nodePort: 30443}]}}"},
		"an unknown field":    {form: "{spec: {trafficPolicy: Local}}", wantErr: "trafficPolicy"},
		"a selector":          {form: "{spec: {selector: {a: b}}}", wantErr: "selector"},
		"the port of clients": {form: "{spec: {ports: [{name: apiserver, port: 6443}]}}", wantErr: "port"},
		"two ports":           {form: "{spec: {ports: [{name: public, port: 1}, {name: public, port: 2}]}}", wantErr: "port"},
		"no YAML":             {form: "{", wantErr: "reading"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tc.form)
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got %v, want %q", err, tc.wantErr)
			}
		})
	}
}

// TestItEndsWithItsContext: errors are repeated, and do not end the process.
func TestItEndsWithItsContext(t *testing.T) {
	k := newKeeper(t, form(t))
	k.deps.Config.Namespace = "nowhere"
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := k.run(ctx); err != nil {
		t.Error(err)
	}
}
