package controller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// sees writes the names of a serving certificate into a Tunnel's status, as observed by one edge.
func sees(t *testing.T, m *management, cluster *clusterv1.Cluster, names ...string) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		tunnel := controllertest.TunnelNamed(cluster)
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		tunnel.Status.Edges = []v1alpha1.EdgeStatus{{
			NodeID: "CN=edge-a", EnrolledAt: metav1.Now(), CertificateNotAfter: metav1.NewTime(time.Now().Add(time.Hour)),
			APIServer: &v1alpha1.EdgeAPIServerStatus{Address: "127.0.0.1:6443", Healthy: true, CertificateNames: names},
		}}
		return m.Status().Update(t.Context(), tunnel)
	})
}

// waitEndpoint waits until the kubeconfig of a Cluster has an endpoint.
func waitEndpoint(t *testing.T, m *management, cluster *clusterv1.Cluster, want kubeconfig.Endpoint) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + kubeconfig.Suffix},
	}
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if got, err := kubeconfig.Read(secret, cluster.Name); err != nil || got != want {
			return fmt.Errorf("the kubeconfig leads %v, %w; want %v", got, err, want)
		}
		return nil
	})
	return secret
}

func TestModeAutoFollowsTheServingCertificate(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	controllertest.Create(t, m, cluster, controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer))
	hostname := "c1." + ns + ".tunnels.example.com"
	connect := kubeconfig.Endpoint{
		Server: controllertest.ConnectServer(cluster), TLSServerName: "kubernetes", ProxyURL: controllertest.ProxyURL,
	}
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigMode, v1alpha1.ReasonNoEvidence)
	waitEndpoint(t, m, cluster, connect)

	sees(t, m, cluster, "kubernetes", hostname)
	waitEndpoint(t, m, cluster, kubeconfig.Endpoint{Server: controllertest.AddressURL, TLSServerName: hostname})
	tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigMode, v1alpha1.ReasonCertificateHasHostname)
	if s := tunnel.Status.Kubeconfig; s.Mode != v1alpha1.KubeconfigModeSNI || s.Server != controllertest.AddressURL ||
		s.TLSServerName != hostname || s.ChangedAt == nil {
		t.Errorf("on record is %+v", s)
	}
	if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionHostnameResolves); c == nil ||
		c.Reason != v1alpha1.ReasonDoesNotResolve {
		t.Errorf("condition HostnameResolves is %+v", c)
	}
	sees(t, m, cluster, "kubernetes")
	waitEndpoint(t, m, cluster, connect)
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigMode, v1alpha1.ReasonCertificateLacksHostname)
}

func TestModeAutoServesTheEndpointsName(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	name := "api." + ns + ".example.org"
	first, second := kubetest.Cluster(ns, "first"), kubetest.Cluster(ns, "second")
	first.Spec.ControlPlaneEndpoint.Host = strings.ToUpper(name)
	controllertest.Create(t, m, first, controllertest.KubeconfigSecret(t, ns, "first", "https://"+name+":6443"))
	waitReady(t, m, first)
	sees(t, m, first, "kubernetes", name)
	waitEndpoint(t, m, first, kubeconfig.Endpoint{Server: controllertest.AddressURL, TLSServerName: name})
	tunnel := waitCondition(t, m, first, v1alpha1.ConditionKubeconfigMode, v1alpha1.ReasonCertificateHasEndpoint)
	if s := tunnel.Status; s.Kubeconfig.EndpointName != name || len(s.Names) != 2 || s.Names[1] != name {
		t.Errorf("names %v, on record is %+v", s.Names, s.Kubeconfig)
	}

	second.Spec.ControlPlaneEndpoint.Host = name
	controllertest.Create(t, m, second, controllertest.KubeconfigSecret(t, ns, "second", "https://"+name+":6443"))
	waitReady(t, m, second)
	sees(t, m, second, "kubernetes", name)
	tunnel = waitCondition(t, m, second, v1alpha1.ConditionKubeconfigMode, v1alpha1.ReasonCertificateLacksHostname)
	if got := controllertest.Message(
		tunnel, v1alpha1.ConditionKubeconfigMode,
	); !strings.Contains(got, ns+"/first has that name too") || len(tunnel.Status.Names) != 1 {
		t.Errorf("message %q, names %v", got, tunnel.Status.Names)
	}
	waitEndpoint(
		t,
		m,
		second,
		kubeconfig.Endpoint{
			Server:        controllertest.ConnectServer(second),
			TLSServerName: name,
			ProxyURL:      controllertest.ProxyURL,
		},
	)
	waitEndpoint(t, m, first, kubeconfig.Endpoint{Server: controllertest.AddressURL, TLSServerName: name})
}

func TestAProxysCredentialsAreInTheSecretAlone(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster, tunnel := kubetest.Cluster(ns, "c1"), controllertest.TunnelNamed(kubetest.Cluster(ns, "c1"))
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode:  v1alpha1.KubeconfigModeSOCKS5,
		Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:1080", CredentialsSecret: "proxy"},
	}
	controllertest.Create(
		t, m, tunnel, cluster, controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer),
	)
	refused := waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonInvalidProxy)
	if got := controllertest.Message(
		refused, v1alpha1.ConditionKubeconfigReady,
	); !strings.HasPrefix(got, "spec.kubeconfig.proxy.credentialsSecret") {
		t.Errorf("message %q", got)
	}
	waitEndpoint(t, m, cluster, kubeconfig.Endpoint{Server: controllertest.OriginalServer})

	credentials := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "proxy"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{corev1.BasicAuthUsernameKey: "capi", corev1.BasicAuthPasswordKey: "hunter2"},
	}
	controllertest.Create(t, m, credentials)
	secret := waitEndpoint(
		t, m, cluster,
		kubeconfig.Endpoint{Server: controllertest.OriginalServer, ProxyURL: "socks5://capi:hunter2@proxy.example.org:1080"},
	)
	controllertest.Edit(
		t, m, credentials, func(s *corev1.Secret) { s.Data[corev1.BasicAuthPasswordKey] = []byte("hunter3") },
	)
	waitEndpoint(
		t, m, cluster,
		kubeconfig.Endpoint{Server: controllertest.OriginalServer, ProxyURL: "socks5://capi:hunter3@proxy.example.org:1080"},
	)
	waitCondition(t, m, cluster, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	now := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonNotTunnelled)
	if now.Status.Kubeconfig.ProxyURL != "socks5://proxy.example.org:1080" {
		t.Errorf("on record is %+v", now.Status.Kubeconfig)
	}
	text, err := json.Marshal([]any{now, secret.Annotations})
	if err != nil || strings.Contains(string(text), "hunter") {
		t.Errorf("the password can be seen: %s, %v", text, err)
	}
}

func TestATunnelIsRemovedForANetworkOfTheUser(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	cluster := kubetest.Cluster(ns, "c1")
	controllertest.Create(t, m, cluster, controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer))
	tunnel := waitReady(t, m, cluster)
	waitCondition(t, m, cluster, v1alpha1.ConditionEnrolled, v1alpha1.ReasonNoEdge)
	controllertest.Edit(t, m, tunnel, func(t *v1alpha1.Tunnel) {
		t.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
			Mode: v1alpha1.KubeconfigModeAddress, Server: "https://lb.example.org:6443", TLSServerName: "kubernetes",
		}
	})
	waitEndpoint(t, m, cluster, kubeconfig.Endpoint{Server: "https://lb.example.org:6443", TLSServerName: "kubernetes"})
	controllertest.WaitGone(t, m, controllertest.BootstrapOf(cluster))
	now := waitCondition(t, m, cluster, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if now.Status.Hostname != "" || now.Status.Names != nil || now.HeldID() == "" || len(now.Status.Tokens) != 0 {
		t.Errorf("something is served: %+v", now.Status)
	}
	for _, kind := range condition.Live {
		if c := apimeta.FindStatusCondition(now.Status.Conditions, kind); c != nil {
			t.Errorf("condition %s is %+v", kind, c)
		}
	}
	controllertest.Eventually(t, func() error {
		if c := apimeta.FindStatusCondition(
			controllertest.Read(t, m, cluster).Status.Conditions, v1alpha1.ClusterConditionTunnelReady,
		); c != nil {
			return fmt.Errorf("the Cluster has the condition %+v", c)
		}
		return nil
	})
	controllertest.Edit(t, m, tunnel, func(t *v1alpha1.Tunnel) {
		t.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect}
	})
	waitEndpoint(
		t, m, cluster,
		kubeconfig.Endpoint{
			Server: controllertest.ConnectServer(cluster), TLSServerName: "kubernetes", ProxyURL: controllertest.ProxyURL,
		},
	)
	controllertest.Eventually(t, func() error {
		return m.Get(t.Context(), client.ObjectKeyFromObject(controllertest.BootstrapOf(cluster)), &corev1.Secret{})
	})
}

func TestTheAPIServerRejectsAnIncompleteMode(t *testing.T) {
	m := apiserver(t)
	ns := kubetest.NewNamespace(t, m)
	for name, spec := range map[string]v1alpha1.KubeconfigSpec{
		"a proxy without mode":     {Proxy: &v1alpha1.ProxySpec{Address: "proxy:3128"}},
		"a mode without proxy":     {Mode: v1alpha1.KubeconfigModeSOCKS5},
		"a mode without server":    {Mode: v1alpha1.KubeconfigModeAddress},
		"a server of another mode": {Mode: v1alpha1.KubeconfigModeSNI, Server: "https://lb.example.org"},
	} {
		tunnel := controllertest.TunnelNamed(kubetest.Cluster(ns, "c1"))
		tunnel.Spec.Kubeconfig = spec
		if err := m.Create(t.Context(), tunnel); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
