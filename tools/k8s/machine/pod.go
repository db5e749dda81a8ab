package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Shorter than the kubelet's 10 s and 5 min, because tests wait for the second attempt.
	firstBackoff = time.Second
	lastBackoff  = 20 * time.Second
	defaultGrace = 30 * time.Second
	// Bounds the wait for a kube-apiserver whose clients stay connected when the machine is switched off.
	offGrace = 5 * time.Second
)

// A pod is a static Pod. Its containers are processes of the machine.
type pod struct {
	spec    *corev1.Pod
	hash    string
	config  config
	notify  func()
	started time.Time

	cancel context.CancelFunc
	ended  chan struct{} // closed when all containers have exited

	mu         sync.Mutex
	isStopping bool
	phase      corev1.PodPhase
	problem    string // why no container can start yet
	init, main []*container
}

func newPod(spec *corev1.Pod, hash string, c config, notify func()) *pod {
	p := &pod{spec: spec, hash: hash, config: c, notify: notify, ended: make(chan struct{}), phase: corev1.PodPending}
	for i := range spec.Spec.InitContainers {
		p.init = append(p.init, newContainer(p, &spec.Spec.InitContainers[i]))
	}
	for i := range spec.Spec.Containers {
		p.main = append(p.main, newContainer(p, &spec.Spec.Containers[i]))
	}
	return p
}

func (p *pod) name() string { return p.spec.Namespace + "/" + p.spec.Name }

// logs returns the folder of its containers' logs.
func (p *pod) logs() string {
	return filepath.Join("/var/log/pods", p.spec.Namespace+"_"+p.spec.Name+"_"+p.hash)
}

func (p *pod) folder() string { return filepath.Join(kubeletDir, "pods", p.hash) }

func (p *pod) grace() time.Duration {
	if !p.stopping() {
		return offGrace
	}
	if seconds := p.spec.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return defaultGrace
}

// start runs the Pod until it is stopped or ctx ends.
func (p *pod) start(ctx context.Context) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.started = time.Now()
	go func() {
		defer close(p.ended)
		p.run(ctx)
		p.notify()
	}()
}

func (p *pod) run(ctx context.Context) {
	if !p.mountVolumes(ctx) {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range p.init {
		if isSidecar(c.spec) {
			running.Go(func() { c.keep(ctx, corev1.RestartPolicyAlways) })
			continue
		}
		c.keep(ctx, corev1.RestartPolicyOnFailure)
		if ctx.Err() != nil || !c.succeeded() {
			return
		}
	}
	policy := p.spec.Spec.RestartPolicy
	if policy == "" {
		policy = corev1.RestartPolicyAlways
	}
	p.setPhase(corev1.PodRunning)
	for _, c := range p.main {
		running.Go(func() { c.keep(ctx, policy) })
	}
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// mountVolumes retries until all volumes exist.
func (p *pod) mountVolumes(ctx context.Context) bool {
	wait := firstBackoff
	for {
		err := p.prepareVolumes()
		p.setProblem(err)
		if err == nil {
			return true
		}
		slog.Error("volumes can't be mounted", "pod", p.name(), "error", err)
		if !pause(ctx, wait) {
			return false
		}
		wait = min(2*wait, lastBackoff)
	}
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (p *pod) setProblem(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem = ""
	if err != nil {
		p.problem = err.Error()
	}
}

func (p *pod) setPhase(phase corev1.PodPhase) {
	p.mu.Lock()
	p.phase = phase
	p.mu.Unlock()
	p.notify()
}

// stop stops all containers, kills them after the grace period, and returns when they have exited.
func (p *pod) stop() {
	p.mu.Lock()
	p.isStopping = true
	p.mu.Unlock()
	p.cancel()
	<-p.ended
}

func (p *pod) stopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isStopping
}

func (p *pod) stopped() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// find returns a container by its name; without a name the only one, or the first.
func (p *pod) find(name string) (*container, error) {
	all := slices.Concat(p.main, p.init)
	for _, c := range all {
		if name == "" || c.spec.Name == name {
			return c, nil
		}
	}
	return nil, errors.New("no container " + name + " in " + p.name())
}
