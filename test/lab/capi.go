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

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The webhook server and the health endpoint of Cluster API's manager listen in the management namespace.
const (
	webhookURL = "https://127.0.0.1:9443"
	healthURL  = "http://127.0.0.1:9440"
)

//go:embed providers.yaml
var providers []byte

// startCAPI installs Cluster API with its webhooks and starts its core manager. It closes installed as soon as the
// types are served.
func (l *Lab) startCAPI(ctx context.Context, installed chan<- struct{}) error {
	authority, err := NewAuthority("capi-webhook")
	if err != nil {
		return err
	}
	crds, err := l.capiCRDs(authority.CertPEM)
	if err != nil {
		return err
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
	webhooks, err := l.capiWebhooks(authority.CertPEM)
	if err != nil {
		return err
	}
	if err := l.startCAPIManager(ctx, authority); err != nil {
		return err
	}
	// Only now, as the apiserver would wait for webhooks that nobody serves yet.
	if err := l.Management.createAll(ctx, webhooks); err != nil {
		return fmt.Errorf("installing Cluster API's webhooks: %w", err)
	}
	return nil
}

func (l *Lab) startCAPIManager(ctx context.Context, authority *Authority) error {
	dir := l.file("capi")
	pair, err := authority.Issue(LeafSpec{CommonName: "capi-webhook", Names: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), pair.write(dir, "tls")); err != nil {
		return fmt.Errorf("writing the certificate of the webhooks: %w", err)
	}
	kubeconfig, err := l.Management.adminKubeconfig("management")
	if err := writeKubeconfig(filepath.Join(dir, "kubeconfig"), kubeconfig, err); err != nil {
		return err
	}
	l.CAPI, err = Start(Spec{
		Name: "capi-core", Namespace: l.Network.Management, Program: l.parts.real("capi-core"), Log: l.LogFile("capi-core"),
		Args: []string{
			"--webhook-port=9443", "--webhook-cert-dir=" + dir, "--health-addr=127.0.0.1:9440", "--diagnostics-address=0", "--v=2",
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"),
		},
	})
	if err != nil {
		return err
	}
	l.onClose(func(context.Context) { l.CAPI.Kill() })
	probe := &http.Client{Transport: &http.Transport{DialContext: l.Network.Management.DialContext}}
	return l.CAPI.WaitReady(ctx, startTimeout, httpOK(probe, healthURL+"/readyz"))
}

// capiCRDs reads the CRDs of Cluster API as its kustomization would write them, and those of the stub providers.
func (l *Lab) capiCRDs(caPEM []byte) ([]*unstructured.Unstructured, error) {
	dir := filepath.Join(l.parts.real("capi-config"), "crd")
	labels, err := kustomizeLabels(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	crds, err := readObjects(filepath.Join(dir, "bases"))
	if err != nil {
		return nil, err
	}
	conversion := map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"}, "clientConfig": webhookClient("/convert", caPEM),
	}}
	for _, crd := range crds {
		crd.SetLabels(merge(crd.GetLabels(), labels))
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if err != nil {
			return nil, fmt.Errorf("reading the versions of %s: %w", crd.GetName(), err)
		}
		if len(versions) > 1 {
			crd.Object["spec"].(map[string]any)["conversion"] = conversion
		}
	}
	stubs, err := parseObjects(providers)
	return append(crds, stubs...), err
}

// capiWebhooks reads the webhook configurations and points them at the manager, which has no Service here.
func (l *Lab) capiWebhooks(caPEM []byte) ([]*unstructured.Unstructured, error) {
	configurations, err := readObjects(filepath.Join(l.parts.real("capi-config"), "webhook", "manifests.yaml"))
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
			fields["clientConfig"] = webhookClient(path, caPEM)
		}
		configuration.Object["webhooks"] = webhooks
		configuration.SetName("capi-" + configuration.GetName())
	}
	return configurations, nil
}

func webhookClient(path string, caPEM []byte) map[string]any {
	return map[string]any{"url": webhookURL + path, "caBundle": base64Of(caPEM)}
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
