package kubeconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const originalServer = "https://192.0.2.10:6443"

// kubeconfigSecret returns a Secret as a control-plane provider writes it.
func kubeconfigSecret(
	t *testing.T, namespace, cluster, server string, changes ...func(*clientcmdapi.Config),
) *corev1.Secret {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: []byte("a CA")}
	config.AuthInfos[cluster+"-admin"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: []byte("a certificate"),
		ClientKeyData:         []byte("a key"),
	}
	config.Contexts["admin@"+cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: cluster + "-admin"}
	config.CurrentContext = "admin@" + cluster
	for _, change := range changes {
		change(config)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      cluster + Suffix,
			Labels:    map[string]string{"cluster.x-k8s.io/cluster-name": cluster},
		},
		Type: "cluster.x-k8s.io/secret",
		Data: map[string][]byte{Key: data},
	}
}

// entryOf returns the entry of the current context.
func entryOf(t *testing.T, secret *corev1.Secret) clientcmdapi.Cluster {
	t.Helper()
	config, err := clientcmd.Load(secret.Data[Key])
	if err != nil {
		t.Fatal(err)
	}
	return *config.Clusters[config.Contexts[config.CurrentContext].Cluster]
}
