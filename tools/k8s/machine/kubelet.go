package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	kubeletDir    = "/var/lib/kubelet"
	kubeletConfig = kubeletDir + "/config.yaml"
	manifestDir   = "/etc/kubernetes/manifests"
	scanInterval  = 500 * time.Millisecond
)

// A kubelet runs the Pods of the manifest folder and reports their state and that of its Node.
type kubelet struct {
	config  config
	changed chan struct{} // a Pod's state has changed; holds at most one signal

	mu   sync.Mutex
	pods map[string]*pod // by file name
	bad  map[string]string
}

func newKubelet(c config) *kubelet {
	return &kubelet{config: c, changed: make(chan struct{}, 1), pods: map[string]*pod{}, bad: map[string]string{}}
}

// run waits for kubeadm's configuration, like the service that restarts until there is one. It then runs until ctx has
// ended and all containers have exited.
func (k *kubelet) run(ctx context.Context) {
	tick := time.NewTicker(scanInterval)
	defer tick.Stop()
	for !exists(kubeletConfig) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	slog.Info("kubelet starts")
	go k.serveHealth(ctx)
	go k.serveAPI(ctx)
	go k.report(ctx)
	for {
		k.scan(ctx)
		select {
		case <-ctx.Done():
			k.stopAll()
			return
		case <-tick.C:
		}
	}
}

// serveHealth answers kubeadm's health checks.
func (k *kubelet) serveHealth(ctx context.Context) {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	server := &http.Server{Addr: "127.0.0.1:10248", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); err != nil && ctx.Err() == nil {
		slog.Error("kubelet's health has no listener", "error", err)
	}
}

// scan makes the running Pods match the manifest folder.
func (k *kubelet) scan(ctx context.Context) {
	found := k.readManifests()
	k.mu.Lock()
	defer k.mu.Unlock()
	for file, p := range k.pods {
		if next, ok := found[file]; ok && next.hash == p.hash {
			continue
		}
		if !p.stopping() {
			slog.Info("pod is stopped", "pod", p.name())
			go func() {
				p.stop()
				k.signal()
			}()
			continue
		}
		if p.stopped() {
			delete(k.pods, file)
		}
	}
	for file, p := range found {
		if k.pods[file] != nil { // it runs, or must end first
			continue
		}
		slog.Info("pod starts", "pod", p.name())
		k.pods[file] = p
		p.start(ctx)
		k.signal()
	}
}

// readManifests reads all manifests. It logs a bad manifest once.
func (k *kubelet) readManifests() map[string]*pod {
	entries, err := os.ReadDir(manifestDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		slog.Error("manifests can't be read", "error", err)
	}
	found := map[string]*pod{}
	for _, entry := range entries {
		file := entry.Name()
		if strings.HasPrefix(file, ".") || entry.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(manifestDir, file))
		if err != nil {
			continue // removed in the meantime
		}
		p, err := k.newPod(data)
		if err != nil {
			if k.bad[file] != err.Error() {
				slog.Error("manifest is no Pod that can run here", "file", file, "error", err)
			}
			k.bad[file] = err.Error()
			// The file may be incomplete. A running Pod stays as it is.
			if old := k.get(file); old != nil {
				found[file] = old
			}
			continue
		}
		delete(k.bad, file)
		found[file] = p
	}
	return found
}

func (k *kubelet) get(file string) *pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pods[file]
}

// newPod parses a manifest. It sets name, hash and node like the kubelet does for static Pods.
func (k *kubelet) newPod(manifest []byte) (*pod, error) {
	spec := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(manifest, spec); err != nil {
		return nil, err
	}
	if spec.Kind != "Pod" || spec.APIVersion != "v1" || spec.Name == "" {
		return nil, fmt.Errorf("want kind Pod of v1 with a name, got %q of %q, %q", spec.Kind, spec.APIVersion, spec.Name)
	}
	if len(spec.Spec.Containers) == 0 {
		return nil, errors.New("no containers")
	}
	sum := sha256.Sum256(append([]byte(k.config.Hostname), manifest...))
	hash := hex.EncodeToString(sum[:16])
	if spec.Namespace == "" {
		spec.Namespace = corev1.NamespaceDefault
	}
	spec.Name += "-" + k.config.Hostname
	spec.Spec.NodeName = k.config.Hostname
	return newPod(spec, hash, k.config, k.signal), nil
}

// signal notifies the reporter of a change.
func (k *kubelet) signal() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// list returns the Pods of the manifests, sorted by name.
func (k *kubelet) list() []*pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*pod
	for _, p := range k.pods {
		if !p.stopping() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pod) int { return strings.Compare(a.name(), b.name()) })
	return all
}

// stopAll waits, after ctx has ended, until all containers have exited.
func (k *kubelet) stopAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range k.pods {
		all.Go(func() { <-p.ended })
	}
	all.Wait()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func kubeletAddress(c config) string { return net.JoinHostPort(c.Address, "10250") }
