package operations

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/test/lab"
)

// workload is a Deployment or a StatefulSet.
type workload interface {
	name() string
	read(ctx context.Context, from client.Reader) error
	gone() bool
	replicas() int32
	template() *corev1.PodTemplateSpec
	len() int
	end(ctx context.Context, i int) error
	start(ctx context.Context, i int) error
	replace(ctx context.Context, i int) error
	report(ctx context.Context, to client.Client, running bool) error
}

type deployment struct {
	id     string
	lab    *lab.Lab
	pods   *lab.Pods
	object appsv1.Deployment
}

func (d *deployment) name() string { return d.id }
func (d *deployment) read(ctx context.Context, from client.Reader) error {
	d.object = appsv1.Deployment{}
	return from.Get(ctx, client.ObjectKey{Namespace: lab.InstallationNamespace, Name: d.id}, &d.object)
}
func (d *deployment) gone() bool                        { return d.object.UID == "" }
func (d *deployment) replicas() int32                   { return ptr.Deref(d.object.Spec.Replicas, 1) }
func (d *deployment) template() *corev1.PodTemplateSpec { return &d.object.Spec.Template }
func (d *deployment) len() int                          { return d.pods.Len() }

// pod returns one Pod. Its name has no random suffix here.
func (d *deployment) pod(i int) *corev1.Pod {
	template := d.template().DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: lab.InstallationNamespace,
			Name:      fmt.Sprintf("%s-%d", d.id, i),
			Labels:    template.Labels,
		},
		Spec: template.Spec,
	}
	return pod
}

func (d *deployment) end(ctx context.Context, i int) error {
	if err := d.pods.End(i, grace); err != nil {
		return err
	}
	return client.IgnoreNotFound(d.lab.Management.Client.Delete(ctx, d.pod(i), client.GracePeriodSeconds(0)))
}

func (d *deployment) start(ctx context.Context, i int) error {
	if err := client.IgnoreAlreadyExists(d.lab.Management.Client.Create(ctx, d.pod(i))); err != nil {
		return err
	}
	return d.pods.Start(ctx, i)
}

func (d *deployment) replace(ctx context.Context, i int) error {
	return errors.Join(d.end(ctx, i), d.start(ctx, i))
}

func (d *deployment) report(ctx context.Context, to client.Client, running bool) error {
	var n int32
	if running {
		n = d.replicas()
	}
	status := d.object.Status.DeepCopy()
	status.ObservedGeneration, status.Replicas, status.UpdatedReplicas, status.ReadyReplicas,
		status.AvailableReplicas = d.object.Generation, n, n, n, n
	if equality.Semantic.DeepEqual(status, &d.object.Status) {
		return nil
	}
	d.object.Status = *status
	return to.Status().Update(ctx, &d.object)
}

type gateways struct {
	lab    *lab.Lab
	object appsv1.StatefulSet
}

func (g *gateways) name() string { return "gateway" }
func (g *gateways) read(ctx context.Context, from client.Reader) error {
	g.object = appsv1.StatefulSet{}
	return from.Get(ctx, client.ObjectKey{Namespace: lab.InstallationNamespace, Name: g.name()}, &g.object)
}
func (g *gateways) gone() bool                         { return g.object.UID == "" }
func (g *gateways) replicas() int32                    { return ptr.Deref(g.object.Spec.Replicas, 1) }
func (g *gateways) template() *corev1.PodTemplateSpec  { return &g.object.Spec.Template }
func (g *gateways) len() int                           { return len(g.lab.Gateways) }
func (g *gateways) end(_ context.Context, i int) error { return g.lab.Gateways[i].Terminate(grace) }
func (g *gateways) start(ctx context.Context, i int) error {
	return g.lab.ReplaceGateway(ctx, i, grace)
}

// replace removes the gateway from the DNS name of all gateways before it is stopped.
func (g *gateways) replace(ctx context.Context, i int) error { return g.start(ctx, i) }

func (g *gateways) report(ctx context.Context, to client.Client, running bool) error {
	var n int32
	if running {
		n = g.replicas()
	}
	status := g.object.Status.DeepCopy()
	status.ObservedGeneration, status.Replicas, status.UpdatedReplicas, status.ReadyReplicas,
		status.AvailableReplicas = g.object.Generation, n, n, n, n
	status.CurrentReplicas, status.CurrentRevision, status.UpdateRevision = n, "gateway-1", "gateway-1"
	if equality.Semantic.DeepEqual(status, &g.object.Status) {
		return nil
	}
	g.object.Status = *status
	return to.Status().Update(ctx, &g.object)
}
