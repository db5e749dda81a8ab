package metrics

import (
	"context"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

// CountingClient is a client that counts writes of kubeconfigs, of status and of signatures.
type CountingClient struct {
	client.Client
	Figures *Collector
}

// Patch implements client.Client.
func (c CountingClient) Patch(
	ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption,
) error {
	ctx, end := writing(ctx, o)
	err := c.Client.Patch(ctx, o, patch, options...)
	end(err)
	c.count(o, err)
	return err
}

// Create implements client.Client.
func (c CountingClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	ctx, end := writing(ctx, o)
	err := c.Client.Create(ctx, o, options...)
	end(err)
	c.count(o, err)
	return err
}

func (c CountingClient) count(o client.Object, err error) {
	if isKubeconfig(o) && !objects.Conflict(err) {
		c.Figures.kubeconfigs.WithLabelValues(result(err)).Inc()
	}
}

// isKubeconfig reports whether an object is the kubeconfig Secret of a Cluster.
func isKubeconfig(o client.Object) bool {
	_, ok := o.(*corev1.Secret)
	return ok && strings.HasSuffix(o.GetName(), kubeconfig.Suffix)
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// Status implements client.Client.
func (c CountingClient) Status() client.SubResourceWriter {
	return countingStatus{c.Client.Status(), c.Figures}
}

// SubResource implements client.Client.
func (c CountingClient) SubResource(name string) client.SubResourceClient {
	return countingSubResource{c.Client.SubResource(name), c.Figures}
}

type countingStatus struct {
	client.SubResourceWriter
	figures *Collector
}

// Patch implements client.SubResourceWriter.
func (c countingStatus) Patch(
	ctx context.Context, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	err := c.SubResourceWriter.Patch(ctx, o, patch, options...)
	if _, ok := o.(*v1alpha1.Tunnel); ok && err == nil {
		c.figures.statusWrites.WithLabelValues().Inc()
	}
	return err
}

// Update implements client.SubResourceWriter.
func (c countingStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	err := c.SubResourceWriter.Update(ctx, o, options...)
	c.figures.countAnswer(o, err)
	return err
}

type countingSubResource struct {
	client.SubResourceClient
	figures *Collector
}

// Update implements client.SubResourceWriter.
func (c countingSubResource) Update(
	ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption,
) error {
	err := c.SubResourceClient.Update(ctx, o, options...)
	c.figures.countAnswer(o, err)
	return err
}

// countAnswer counts the answer to a CertificateSigningRequest. An approval is only the first step and not counted.
func (f *Collector) countAnswer(o client.Object, err error) {
	csr, ok := o.(*certificatesv1.CertificateSigningRequest)
	if !ok || objects.Conflict(err) {
		return // another writer was faster, and the request is reconciled again
	}
	roles := map[string]model.Role{
		v1alpha1.SignerEdge: model.RoleEdge, v1alpha1.SignerEgress: model.RoleEgress,
		v1alpha1.SignerGateway: model.RoleGateway, v1alpha1.SignerControl: model.RoleControl,
	}
	role := string(roles[csr.Spec.SignerName])
	switch {
	case err != nil:
		f.signatures.WithLabelValues(role, "error").Inc()
	case len(csr.Status.Certificate) > 0:
		f.signatures.WithLabelValues(role, "signed").Inc()
	case objects.HasCondition(csr, certificatesv1.CertificateDenied):
		f.signatures.WithLabelValues(role, "denied").Inc()
	}
}

// writing starts the span of a write of a kubeconfig or of a copy, which webhooks of others may delay. Other writes
// have none.
func writing(ctx context.Context, o client.Object) (context.Context, func(error)) {
	_, secret := o.(*corev1.Secret)
	if !secret || !isKubeconfig(o) && o.GetLabels()[v1alpha1.CopyLabel] == "" {
		return ctx, func(error) {}
	}
	ctx, span := traces.Begin(ctx, "write kubeconfig", "namespace", o.GetNamespace(), "name", o.GetName())
	return ctx, func(err error) { reconciler.EndSpan(span, err) }
}
