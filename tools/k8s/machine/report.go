package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	heartbeat   = 10 * time.Second
	callTimeout = 10 * time.Second
	retryPause  = time.Second
)

// A reporter reports the Node and its Pods to the cluster.
type reporter struct {
	kubelet    *kubelet
	client     kubernetes.Interface
	kubeconfig string // from which client was made
	node       *corev1.Node
	lastBeat   time.Time
}

// report reports the Node and its Pods to the cluster, from the time when kubelet.conf exists until ctx ends.
func (k *kubelet) report(ctx context.Context) {
	r := &reporter{kubelet: k}
	last := ""
	for {
		err := r.once(ctx)
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != last && text != "" {
			slog.Warn("kubelet can't report", "error", text)
		}
		last = text
		wait := heartbeat / 2
		if err != nil || r.node == nil {
			wait = retryPause
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.changed:
		case <-timer.C:
		}
		timer.Stop()
		// Changes at the same time are reported together.
		if !pause(ctx, 200*time.Millisecond) {
			return
		}
	}
}

// once makes the reports that are due.
func (r *reporter) once(ctx context.Context) error {
	if err := r.kubelet.bootstrap(ctx); err != nil {
		return err
	}
	if err := r.connect(); err != nil || r.client == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	if r.node == nil {
		node, err := r.register(ctx)
		if err != nil {
			return fmt.Errorf("registering the Node: %w", err)
		}
		slog.Info("node is registered", "node", node.Name)
		r.node = node
	}
	var errs []error
	if time.Since(r.lastBeat) >= heartbeat {
		err := errors.Join(r.updateNode(ctx), r.renewLease(ctx))
		if err == nil {
			r.lastBeat = time.Now()
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, r.mirror(ctx))...)
}

// connect makes a client, and a new one when kubeadm has written another kubelet.conf. The client is nil while there is
// no such file.
func (r *reporter) connect() error {
	data, err := os.ReadFile(kubeletConf)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.client != nil && string(data) == r.kubeconfig {
		return nil
	}
	rest, err := clientcmd.BuildConfigFromFlags("", kubeletConf)
	if err != nil {
		return err
	}
	rest.Timeout = callTimeout
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	r.client, r.kubeconfig = client, string(data)
	return nil
}

// kubeletFlags returns the flags that kubeadm passes to the kubelet, from the Node's registration.
func kubeletFlags() (map[string]string, error) {
	data, err := os.ReadFile(kubeletDir + "/kubeadm-flags.env")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, line, _ := strings.Cut(strings.TrimSpace(string(data)), "=")
	flags := map[string]string{}
	for flag := range strings.FieldsSeq(strings.Trim(line, `"`)) {
		name, value, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		flags[name] = value
	}
	return flags, nil
}
