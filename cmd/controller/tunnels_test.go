package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/features"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/tracetest"
)

var management = kubetest.Server{CRDs: true}

// credential is the credential in a kubeconfig of these tests.
const credential = "what-only-the-kubeconfig-may-have"

func TestMain(m *testing.M) { os.Exit(management.Run(m)) }

// kubeconfigFile writes a kubeconfig that has only the permissions of the controller's ServiceAccount.
func kubeconfigFile(t *testing.T, config *rest.Config) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["m"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["m"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Impersonate:       "system:serviceaccount:fairlead-system:controller",
		ImpersonateGroups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	file.Contexts["m"] = &clientcmdapi.Context{Cluster: "m", AuthInfo: "m"}
	file.CurrentContext = "m"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWithoutTunnelsTheProgramWritesOnlyKubeconfigs runs the whole program with only an apiserver.
func TestWithoutTunnelsTheProgramWritesOnlyKubeconfigs(t *testing.T) {
	config := management.Config(t)
	api, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := kubetest.Deploy(t.Context(), api, "namespace.yaml", "controller.yaml"); err != nil {
		t.Fatal(err)
	}
	ns := kubetest.NewNamespace(t, api)
	cluster := kubetest.Cluster(ns, "c1")
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c1"}}
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode:  v1alpha1.KubeconfigModeHTTPProxy,
		Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:3128"},
	}
	provided := clientcmdapi.NewConfig()
	provided.Clusters["c1"] = &clientcmdapi.Cluster{Server: "https://192.0.2.10:6443"}
	provided.AuthInfos["c1"] = &clientcmdapi.AuthInfo{Token: credential}
	data, err := clientcmd.Write(*provided)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns,
			Name:      "c1-kubeconfig",
			Labels:    map[string]string{clusterv1.ClusterNameLabel: "c1"},
		},
		Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": data},
	}
	for _, o := range []client.Object{tunnel, cluster, secret} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	collector := tracetest.Start(t)
	args := []string{
		"--tunnels=false",
		"--health-listen=0",
		"--webhook-listen=0",
		"--kubeconfig=" + kubeconfigFile(t, config),
		"--otlp-endpoint=" + collector.Endpoint,
	}
	go func() { ended <- run(ctx, args, &stderr, &stderr) }()

	kubetest.Eventually(t, "writing the kubeconfig", func() error { return proxied(t.Context(), api, secret) })
	if features.FeatureGates().Enabled(features.WatchListClient) {
		t.Error("the informers read streaming lists")
	}
	kubetest.Eventually(t, "saying so", func() error {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		if !apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("conditions %+v", tunnel.Status.Conditions)
		}
		return nil
	})
	cluster.Labels = map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelDisabled}
	if err := api.Patch(t.Context(), cluster, client.Merge); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "giving the kubeconfig back", func() error {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if !bytes.Equal(secret.Data["value"], data) || len(secret.Annotations) != 0 {
			return fmt.Errorf("it is %s with %v", secret.Data["value"], secret.Annotations)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); client.IgnoreNotFound(err) != nil ||
			err == nil {
			return errors.Join(errors.New("the Tunnel is still there"), err)
		}
		return nil
	})
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
	checkNothingElse(t, api, ns)
	checkSpans(t, collector, ns)
}

// checkSpans checks that spans follow a kubeconfig to the apiserver and contain no secrets.
func checkSpans(t *testing.T, c *tracetest.Collector, namespace string) {
	t.Helper()
	var steps []string
	for _, reconcile := range c.Find("reconcile", "fairlead.controller", "kubeconfig", "fairlead.namespace", namespace,
		"fairlead.name", "c1") {
		for _, write := range c.Below(reconcile, "write kubeconfig") {
			for _, patch := range c.Below(write, "HTTP PATCH") {
				steps = append(steps, fmt.Sprint(
					tracetest.Attribute(reconcile, "fairlead.result"), " ", tracetest.Attribute(write, "fairlead.name"), " ",
					strings.Contains(tracetest.Attribute(patch, "url.full"), "/namespaces/"+namespace+"/secrets/c1-kubeconfig"), " ",
					tracetest.Attribute(patch, "http.response.status_code"),
				))
			}
		}
	}
	if !slices.Contains(steps, "again c1-kubeconfig true 200") && !slices.Contains(steps, "done c1-kubeconfig true 200") {
		t.Errorf("the kubeconfig was written %v", steps)
	}
	// Spans contain neither the objects written nor the answers. Watches and leases have no span.
	for _, not := range []string{
		credential, base64.StdEncoding.EncodeToString([]byte(credential))[:16],
		"proxy.example.org", "watch=true",
	} {
		if c.Has(not) {
			t.Errorf("%q was sent to the collector", not)
		}
	}
}

func proxied(ctx context.Context, api client.Client, secret *corev1.Secret) error {
	if err := api.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
		return err
	}
	config, err := clientcmd.Load(secret.Data["value"])
	if err != nil {
		return err
	}
	if c := config.Clusters["c1"]; c.ProxyURL != "http://proxy.example.org:3128" || c.Server != "https://192.0.2.10:6443" {
		return fmt.Errorf("it leads to %s by %s", c.Server, c.ProxyURL)
	}
	return nil
}

// checkNothingElse checks that nothing exists that only an installation with tunnels creates.
func checkNothingElse(t *testing.T, api client.Client, namespace string) {
	t.Helper()
	for where, want := range map[string][]string{"fairlead-system": nil, namespace: {"c1-kubeconfig"}} {
		var secrets corev1.SecretList
		if err := api.List(t.Context(), &secrets, client.InNamespace(where)); err != nil {
			t.Fatal(err)
		}
		if len(secrets.Items) != len(want) {
			t.Errorf("%s has %d Secrets, want %v", where, len(secrets.Items), want)
		}
		var maps corev1.ConfigMapList
		if err := api.List(t.Context(), &maps, client.InNamespace(where)); err != nil {
			t.Fatal(err)
		}
		for i := range maps.Items {
			if name := maps.Items[i].Name; name != "kube-root-ca.crt" {
				t.Errorf("%s has the ConfigMap %s", where, name)
			}
		}
	}
}
