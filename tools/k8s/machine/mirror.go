package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

const (
	hashAnnotation   = "kubernetes.io/config.hash"
	seenAnnotation   = "kubernetes.io/config.seen"
	sourceAnnotation = "kubernetes.io/config.source"
)

// mirror makes the mirror Pods match the manifests and the state of their processes. It does not change other Pods that
// are bound to the Node: this machine runs none.
func (r *reporter) mirror(ctx context.Context) error {
	list, err := r.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", r.node.Name).String(),
	})
	if err != nil {
		return fmt.Errorf("listing the Node's Pods: %w", err)
	}
	wanted := map[string]*pod{}
	for _, p := range r.kubelet.list() {
		wanted[p.name()] = p
	}
	var errs []error
	for i := range list.Items {
		found := &list.Items[i]
		hash, mirrored := found.Annotations[corev1.MirrorPodAnnotationKey]
		if !mirrored {
			continue
		}
		name := found.Namespace + "/" + found.Name
		p := wanted[name]
		delete(wanted, name)
		if p == nil || p.hash != hash || found.DeletionTimestamp != nil {
			errs = append(errs, r.remove(ctx, found))
			if p == nil {
				continue
			}
			wanted[name] = p
			continue
		}
		errs = append(errs, r.updatePod(ctx, found, p))
	}
	for _, p := range wanted {
		errs = append(errs, r.createMirror(ctx, p))
	}
	return errors.Join(errs...)
}

func (r *reporter) remove(ctx context.Context, found *corev1.Pod) error {
	now := int64(0)
	err := r.client.CoreV1().Pods(found.Namespace).Delete(ctx, found.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &found.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing mirror pod %s: %w", found.Name, err)
	}
	return nil
}

func (r *reporter) createMirror(ctx context.Context, p *pod) error {
	controller := true
	copied := p.spec.DeepCopy()
	if copied.Annotations == nil {
		copied.Annotations = map[string]string{}
	}
	copied.Annotations[corev1.MirrorPodAnnotationKey] = p.hash
	copied.Annotations[hashAnnotation] = p.hash
	copied.Annotations[sourceAnnotation] = "file"
	copied.Annotations[seenAnnotation] = p.started.UTC().Format("2006-01-02T15:04:05.000000000Z")
	copied.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: r.node.Name, UID: r.node.UID, Controller: &controller,
	}}
	copied.Spec.Tolerations = append(copied.Spec.Tolerations,
		corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	copied.Status = corev1.PodStatus{}
	created, err := r.client.CoreV1().Pods(copied.Namespace).Create(ctx, copied, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating mirror pod %s: %w", copied.Name, err)
	}
	return r.updatePod(ctx, created, p)
}

// updatePod reports the state of a Pod if it has changed since the last report.
func (r *reporter) updatePod(ctx context.Context, found *corev1.Pod, p *pod) error {
	changed := found.DeepCopy()
	p.report(&changed.Status)
	if equality.Semantic.DeepEqual(found.Status, changed.Status) {
		return nil
	}
	if _, err := r.client.CoreV1().Pods(found.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reporting pod %s: %w", found.Name, err)
	}
	return nil
}

// report fills in the state of the Pod.
func (p *pod) report(s *corev1.PodStatus) {
	p.mu.Lock()
	s.Phase, s.Message = p.phase, p.problem
	p.mu.Unlock()
	started := metav1.NewTime(p.started.Truncate(1e9))
	s.StartTime = &started
	s.HostIP, s.PodIP = p.config.Address, p.config.Address
	s.HostIPs, s.PodIPs = []corev1.HostIP{{IP: s.HostIP}}, []corev1.PodIP{{IP: s.PodIP}}
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	ready, initialized := true, true
	for _, c := range p.init {
		state := c.status()
		initialized = initialized && (state.State.Running != nil || c.succeeded())
		s.InitContainerStatuses = append(s.InitContainerStatuses, state)
	}
	for _, c := range p.main {
		state := c.status()
		ready = ready && state.Ready
		s.ContainerStatuses = append(s.ContainerStatuses, state)
	}
	setPodCondition(s, corev1.PodReadyToStartContainers, s.Message == "")
	setPodCondition(s, corev1.PodInitialized, initialized)
	setPodCondition(s, corev1.ContainersReady, ready)
	setPodCondition(s, corev1.PodReady, ready)
	setPodCondition(s, corev1.PodScheduled, true)
}

func setPodCondition(s *corev1.PodStatus, kind corev1.PodConditionType, is bool) {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	if is {
		c.Status = corev1.ConditionTrue
	} else if kind == corev1.PodReady || kind == corev1.ContainersReady {
		c.Reason = "ContainersNotReady"
	}
	at := slices.IndexFunc(s.Conditions, func(old corev1.PodCondition) bool { return old.Type == kind })
	if at < 0 {
		s.Conditions = append(s.Conditions, c)
	} else if s.Conditions[at].Status != c.Status {
		s.Conditions[at] = c
	}
}

// machineID returns the same id at each boot.
func machineID(c config) string {
	sum := sha256.Sum256([]byte(c.Dir + "/" + c.Hostname))
	return hex.EncodeToString(sum[:16])
}
