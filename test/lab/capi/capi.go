// Package capi installs Cluster API in the management cluster of a lab and runs its managers. Input: an apiserver and
// the folder of a lab. Output: types, webhooks and running managers. It does not know where machines come from.
package capi

import (
	"context"
	"crypto/x509"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// manager is one of Cluster API's managers. Its webhook server and its health endpoint listen in the management
// namespace.
type manager struct {
	name            string // of the program, the process, and the webhook configurations
	config          string // folder of its types and webhooks
	webhook, health int    // ports
	flags           []string
}

var coreManager = manager{name: "capi-core", config: "capi-config", webhook: 9443, health: 9440}

//go:embed providers.yaml
var providers []byte

// Provider is what Cluster API's managers run with.
type Provider struct {
	Workspace  *workspace.Workspace
	Management *kube.APIServer
	Webhooks   *pki.Authority // of the managers' webhooks: a restored management cluster trusts the one that it had
	Bootstrap  bool           // with the kubeadm bootstrap provider
	Machines   bool           // with both kubeadm providers
	Lean       bool           // only types: no manager runs
}

// Start installs Cluster API with its webhooks, starts its managers and returns them, the core manager first; none if
// Lean is set. It closes installed as soon as the types are served.
func (p *Provider) Start(ctx context.Context, installed chan<- struct{}) ([]*proc.Process, error) {
	crds, err := kube.ParseObjects(providers)
	if err != nil {
		return nil, err
	}
	managers := p.managers()
	for _, m := range managers {
		more, err := p.crds(m)
		if err != nil {
			return nil, err
		}
		crds = append(crds, more...)
	}
	if err := p.Management.CreateAll(ctx, crds); err != nil {
		return nil, fmt.Errorf("installing Cluster API's types: %w", err)
	}
	if err := p.Management.WaitEstablished(ctx, crds); err != nil {
		return nil, err
	}
	close(installed)
	if p.Lean {
		return nil, nil // a Cluster is then an object like any other
	}
	return p.each(ctx, p.startManager)
}

// Restart kills the managers that Start returned, and starts them again with empty caches, as an upgrade of Cluster API
// does. It returns the new ones.
func (p *Provider) Restart(ctx context.Context, managers []*proc.Process) ([]*proc.Process, error) {
	for _, m := range managers {
		m.Kill()
	}
	return p.each(ctx, func(ctx context.Context, m manager) (*proc.Process, error) { return p.runManager(ctx, m.name, m) })
}

// each starts all managers at the same time, and returns them in the order of managers.
func (p *Provider) each(
	ctx context.Context, start func(context.Context, manager) (*proc.Process, error),
) ([]*proc.Process, error) {
	managers := p.managers()
	processes := make([]*proc.Process, len(managers))
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range managers {
		group.Go(func() (err error) {
			processes[i], err = start(ctx, m)
			return err
		})
	}
	return processes, group.Wait()
}

// startManager starts a manager, and installs its webhooks as soon as it serves them, because the apiserver would wait
// for them.
func (p *Provider) startManager(ctx context.Context, m manager) (*proc.Process, error) {
	process, err := p.runManager(ctx, m.name, m)
	if err != nil {
		return process, err
	}
	webhooks, err := p.webhooks(m)
	if err != nil {
		return process, err
	}
	if err := p.Management.CreateAll(ctx, webhooks); err != nil {
		return process, fmt.Errorf("installing the webhooks of %s: %w", m.name, err)
	}
	return process, nil
}

// runManager starts a manager as a process with the given name, and waits until it is ready. It does not install its
// webhooks.
func (p *Provider) runManager(ctx context.Context, name string, m manager) (*proc.Process, error) {
	dir := p.Workspace.File(name)
	pair, err := p.Webhooks.Issue(pki.LeafSpec{
		CommonName: "capi-webhook", Names: []string{"127.0.0.1"},
		Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), pair.Write(dir, "tls")); err != nil {
		return nil, fmt.Errorf("writing the certificate of the webhooks: %w", err)
	}
	kubeconfig, err := p.Management.AdminKubeconfig("management")
	if err := kube.WriteKubeconfig(filepath.Join(dir, "kubeconfig"), kubeconfig, err); err != nil {
		return nil, err
	}
	process, err := proc.Start(proc.Spec{
		Name: name, Namespace: p.Management.Namespace, Program: p.Workspace.Parts.RealPath(m.name),
		Log: p.Workspace.LogFile(name),
		Args: append([]string{
			"--webhook-port=" + strconv.Itoa(m.webhook), "--webhook-cert-dir=" + dir,
			"--health-addr=" + netns.HostPort("127.0.0.1", m.health),
			"--diagnostics-address=0", "--v=2", "--kubeconfig=" + filepath.Join(dir, "kubeconfig"),
		}, m.flags...),
	})
	if err != nil {
		return nil, err
	}
	p.Workspace.OnClose(func(context.Context) { process.Kill() })
	probe := &http.Client{Transport: &http.Transport{
		DialContext:       p.Management.Namespace.DialContext,
		DisableKeepAlives: true,
	}}
	return process, process.WaitReady(ctx, proc.StartTimeout,
		proc.Answers200(probe, "http://"+netns.HostPort("127.0.0.1", m.health)+"/readyz"))
}

// StartManager starts Cluster API's core manager for the Clusters of one namespace, without webhooks. It is for a lean
// lab, which has no manager. One may run at a time; name is the name of its log.
func (p *Provider) StartManager(ctx context.Context, name, namespace string, flags ...string) (*proc.Process, error) {
	m := coreManager
	m.flags = append([]string{"--namespace=" + namespace}, flags...)
	return p.runManager(ctx, name, m)
}

// clusterctlLabel is the label that clusterctl adds to everything that it installs. clusterctl moves objects only of
// types with this label.
const clusterctlLabel = "clusterctl.cluster.x-k8s.io"

// crds reads the CRDs of a manager as its kustomization would write them.
func (p *Provider) crds(m manager) ([]*unstructured.Unstructured, error) {
	dir := filepath.Join(p.Workspace.Parts.RealPath(m.config), "crd")
	labels, err := kustomizeLabels(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	crds, err := kube.ReadObjects(filepath.Join(dir, "bases"))
	if err != nil {
		return nil, err
	}
	conversion := map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"}, "clientConfig": m.webhookClient("/convert", p.Webhooks.CertPEM),
	}}
	for _, crd := range crds {
		crd.SetLabels(merge(merge(crd.GetLabels(), labels), map[string]string{clusterctlLabel: ""}))
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			return nil, fmt.Errorf("reading the versions of %s: %w", crd.GetName(), err)
		}
		// without a manager there is no conversion, and the apiserver would retry without end
		if len(versions) > 1 && !p.Lean {
			crd.Object["spec"].(map[string]any)["conversion"] = conversion
		}
	}
	return crds, nil
}

// webhooks reads the webhook configurations and points them at the manager, which has no Service here.
func (p *Provider) webhooks(m manager) ([]*unstructured.Unstructured, error) {
	configurations, err := kube.ReadObjects(filepath.Join(p.Workspace.Parts.RealPath(m.config), "webhook",
		"manifests.yaml"))
	if err != nil {
		return nil, err
	}
	for _, configuration := range configurations {
		webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
		if err != nil {
			return nil, fmt.Errorf("reading webhooks of %s: %w", configuration.GetName(), err)
		}
		for _, webhook := range webhooks {
			fields := webhook.(map[string]any)
			path, _, err := unstructured.NestedString(fields, "clientConfig", "service", "path")
			if err != nil {
				return nil, fmt.Errorf("reading webhooks of %s: %w", configuration.GetName(), err)
			}
			fields["clientConfig"] = m.webhookClient(path, p.Webhooks.CertPEM)
		}
		configuration.Object["webhooks"] = webhooks
		configuration.SetName(m.name + "-" + configuration.GetName())
	}
	return configurations, nil
}

func (m manager) webhookClient(path string, caPEM []byte) map[string]any {
	return map[string]any{"url": "https://" + netns.HostPort("127.0.0.1", m.webhook) + path, "caBundle": base64Of(caPEM)}
}

// kustomizeLabels reads the labels that a kustomization adds. Cluster API uses them to find the version of a CRD.
func kustomizeLabels(file string) (map[string]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading Cluster API's kustomization: %w", err)
	}
	var kustomization struct {
		CommonLabels map[string]string `json:"commonLabels"`
		Labels       []struct {
			Pairs map[string]string `json:"pairs"`
		} `json:"labels"`
	}
	if err := yaml.Unmarshal(data, &kustomization); err != nil {
		return nil, fmt.Errorf("reading Cluster API's kustomization: %w", err)
	}
	labels := kustomization.CommonLabels
	for _, group := range kustomization.Labels {
		labels = merge(labels, group.Pairs)
	}
	return labels, nil
}

// The managers of Cluster API's kubeadm providers resync their objects more often than by default, so that tests do not
// wait ten minutes.
var (
	bootstrapManager = manager{
		name: "capi-bootstrap", config: "capi-bootstrap-config", webhook: 9445, health: 9441,
		flags: []string{"--sync-period=30s"},
	}
	controlPlaneManager = manager{
		name: "capi-control-plane", config: "capi-control-plane-config", webhook: 9446, health: 9442,
		flags: []string{"--sync-period=30s"},
	}
)

// managers returns the managers that run, the core manager first.
func (p *Provider) managers() []manager {
	switch {
	case p.Machines:
		return []manager{coreManager, bootstrapManager, controlPlaneManager}
	case p.Bootstrap:
		return []manager{coreManager, bootstrapManager}
	}
	return []manager{coreManager}
}

func base64Of(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// merge returns a new map with the entries of both. Entries of more take precedence.
func merge(labels, more map[string]string) map[string]string {
	merged := maps.Clone(labels)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, more)
	return merged
}
