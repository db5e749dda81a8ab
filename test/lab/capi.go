package lab

import (
	"context"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// manager is one of Cluster API's managers. Its webhook server and its health endpoint listen in the management namespace.
type manager struct {
	name            string // of the program, the process, and the webhook configurations
	config          string // folder of its types and webhooks
	webhook, health int    // ports
	flags           []string
}

var coreManager = manager{name: "capi-core", config: "capi-config", webhook: 9443, health: 9440}

//go:embed providers.yaml
var providers []byte

// startCAPI installs Cluster API with its webhooks and starts its managers. It closes installed as soon as the
// types are served.
func (l *Lab) startCAPI(ctx context.Context, installed chan<- struct{}) error {
	if l.webhooks == nil { // a management cluster that is restored trusts the one that there was
		authority, err := NewAuthority("capi-webhook")
		if err != nil {
			return err
		}
		l.webhooks = authority
	}
	authority, managers := l.webhooks, l.capiManagers()
	crds, err := parseObjects(providers)
	if err != nil {
		return err
	}
	for _, m := range managers {
		more, err := l.capiCRDs(m, authority.CertPEM)
		if err != nil {
			return err
		}
		crds = append(crds, more...)
	}
	if err := l.Management.createAll(ctx, crds); err != nil {
		return fmt.Errorf("installing Cluster API's types: %w", err)
	}
	if err := l.Management.waitEstablished(ctx, crds); err != nil {
		return err
	}
	close(installed)
	if l.options.Lean {
		return nil // a Cluster is an object like any other then
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range managers {
		group.Go(func() error {
			process, err := l.startCAPIManager(ctx, m, authority)
			if i == 0 {
				l.CAPI = process
			}
			return err
		})
	}
	return group.Wait()
}

// startCAPIManager starts a manager, and installs its webhooks as soon as it serves them: the apiserver would wait for them.
func (l *Lab) startCAPIManager(ctx context.Context, m manager, authority *Authority) (*Process, error) {
	process, err := l.runManager(ctx, m.name, m, authority)
	if err != nil {
		return process, err
	}
	webhooks, err := l.capiWebhooks(m, authority.CertPEM)
	if err != nil {
		return process, err
	}
	if err := l.Management.createAll(ctx, webhooks); err != nil {
		return process, fmt.Errorf("installing the webhooks of %s: %w", m.name, err)
	}
	return process, nil
}

// runManager starts a manager as a process of some name, and waits until it is ready. Its webhooks are not installed.
func (l *Lab) runManager(ctx context.Context, name string, m manager, authority *Authority) (*Process, error) {
	dir := l.file(name)
	pair, err := authority.Issue(LeafSpec{CommonName: "capi-webhook", Names: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), pair.write(dir, "tls")); err != nil {
		return nil, fmt.Errorf("writing the certificate of the webhooks: %w", err)
	}
	kubeconfig, err := l.Management.adminKubeconfig("management")
	if err := writeKubeconfig(filepath.Join(dir, "kubeconfig"), kubeconfig, err); err != nil {
		return nil, err
	}
	process, err := Start(Spec{
		Name: name, Namespace: l.Network.Management, Program: l.parts.real(m.name), Log: l.LogFile(name),
		Args: append([]string{
			"--webhook-port=" + strconv.Itoa(m.webhook), "--webhook-cert-dir=" + dir, "--health-addr=" + host("127.0.0.1", m.health),
			"--diagnostics-address=0", "--v=2", "--kubeconfig=" + filepath.Join(dir, "kubeconfig"),
		}, m.flags...),
	})
	if err != nil {
		return nil, err
	}
	l.onClose(func(context.Context) { process.Kill() })
	probe := &http.Client{Transport: &http.Transport{DialContext: l.Network.Management.DialContext, DisableKeepAlives: true}}
	return process, process.WaitReady(ctx, startTimeout, httpOK(probe, "http://"+host("127.0.0.1", m.health)+"/readyz"))
}

// StartManager starts Cluster API's core manager for the Clusters of one namespace of a lean lab, which has none of its own, and without
// webhooks. One may run at a time; its log has the name.
func (l *Lab) StartManager(ctx context.Context, name, namespace string, flags ...string) (*Process, error) {
	authority, err := NewAuthority("capi-webhook")
	if err != nil {
		return nil, err
	}
	m := coreManager
	m.flags = append([]string{"--namespace=" + namespace}, flags...)
	return l.runManager(ctx, name, m, authority)
}

// clusterctlLabel is what clusterctl adds to everything that it installs, and looks for in types whose objects it may move.
const clusterctlLabel = "clusterctl.cluster.x-k8s.io"

// capiCRDs reads the CRDs of a manager as its kustomization would write them.
func (l *Lab) capiCRDs(m manager, caPEM []byte) ([]*unstructured.Unstructured, error) {
	dir := filepath.Join(l.parts.real(m.config), "crd")
	labels, err := kustomizeLabels(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	crds, err := readObjects(filepath.Join(dir, "bases"))
	if err != nil {
		return nil, err
	}
	conversion := map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"}, "clientConfig": m.webhookClient("/convert", caPEM),
	}}
	for _, crd := range crds {
		crd.SetLabels(merge(merge(crd.GetLabels(), labels), map[string]string{clusterctlLabel: ""}))
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			return nil, fmt.Errorf("reading the versions of %s: %w", crd.GetName(), err)
		}
		if len(versions) > 1 && !l.options.Lean { // without a manager nobody converts, and the apiserver would ask for ever
			crd.Object["spec"].(map[string]any)["conversion"] = conversion
		}
	}
	return crds, nil
}

// capiWebhooks reads the webhook configurations and points them at the manager, which has no Service here.
func (l *Lab) capiWebhooks(m manager, caPEM []byte) ([]*unstructured.Unstructured, error) {
	configurations, err := readObjects(filepath.Join(l.parts.real(m.config), "webhook", "manifests.yaml"))
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
			fields["clientConfig"] = m.webhookClient(path, caPEM)
		}
		configuration.Object["webhooks"] = webhooks
		configuration.SetName(m.name + "-" + configuration.GetName())
	}
	return configurations, nil
}

func (m manager) webhookClient(path string, caPEM []byte) map[string]any {
	return map[string]any{"url": "https://" + host("127.0.0.1", m.webhook) + path, "caBundle": base64Of(caPEM)}
}

// kustomizeLabels reads the labels that a kustomization adds: Cluster API finds the version of a CRD by them.
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

// waitEstablished waits until an apiserver serves the types of CRDs.
func (a *APIServer) waitEstablished(ctx context.Context, crds []*unstructured.Unstructured) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, crd := range crds {
		group.Go(func() error {
			return Wait(ctx, startTimeout, func(ctx context.Context) error {
				current := &unstructured.Unstructured{}
				current.SetGroupVersionKind(crd.GroupVersionKind())
				if err := a.Client.Get(ctx, types.NamespacedName{Name: crd.GetName()}, current); err != nil {
					return err
				}
				return established(current)
			})
		})
	}
	return group.Wait()
}

func established(crd *unstructured.Unstructured) error {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	if err != nil {
		return err
	}
	is := func(c any) bool {
		fields, _ := c.(map[string]any)
		return fields["type"] == "Established" && fields["status"] == "True"
	}
	if !slices.ContainsFunc(conditions, is) {
		return fmt.Errorf("type %s is not established", crd.GetName())
	}
	return nil
}

// createAll creates objects, all at the same time, and tries again while the apiserver doesn't know a type yet.
func (a *APIServer) createAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, object := range objects {
		group.Go(func() error {
			create := func() error { return client.IgnoreAlreadyExists(a.Client.Create(ctx, object.DeepCopy())) }
			if err := retry.OnError(retry.DefaultBackoff, isNoMatch, create); err != nil {
				return fmt.Errorf("creating %s %s: %w", object.GetKind(), object.GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}
